import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { assistantMessage, contentWithCalls, toolCallsFrom, toolCallsSchema } from './messages.ts';
import { idsSchema, logprobsSchema, scannedLogprobsSchema, tokenIdsSchema, usageSchema } from './reply-tokens.ts';

// The fields of replies that are the same in all engines' forms of chat completions. The schema of an engine consists of these and of the
// fields that only this engine has.

/** The stop token or stop string that ended a reply. */
export const stopReasonSchema = z.union([z.int(), z.string()]).nullish();

/** A server may number the choices of a reply; only one was requested. */
const indexSchema = z.literal(0).nullish();

/** The texts of a message or of its piece. */
export const textFields = {
  content: z.string().nullish(),
  refusal: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
};

const callDeltaSchema = z.looseObject({
  index: z.int().min(0).nullish(),
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string().nullish(), arguments: z.string().nullish() }).nullish(),
});
export type CallDelta = z.output<typeof callDeltaSchema>;

/** The piece of a message that one chunk of a stream adds. */
export const deltaSchema = z.looseObject({ ...textFields, tool_calls: z.array(callDeltaSchema).nullish() });
export type Delta = z.output<typeof deltaSchema>;

/** Fields of a chunk of a stream, beside its choices. */
export const chunkFields = {
  id: z.string().nullish(),
  model: z.string().nullish(),
  usage: usageSchema.nullish(),
};

/** Fields of the choice of a chunk, beside its delta. */
export const chunkChoiceFields = { index: indexSchema, finish_reason: z.string().nullish() };

/** Further fields of the choice of a chunk when the server reports token ids. */
export const tokenChunkChoiceFields = {
  ...chunkChoiceFields,
  stop_reason: stopReasonSchema,
  matched_stop: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: tokenIdsSchema.nullish(),
  logprobs: logprobsSchema,
};

/** The message of a reply that is not streamed. */
export const messageSchema = z.object({ ...textFields, tool_calls: toolCallsSchema });
type Message = z.output<typeof messageSchema>;

/** Fields of the choice of a reply that is not streamed, beside its message. */
export const choiceFields = { index: indexSchema, finish_reason: z.string() };

/** Further fields of this choice when the server reports token ids. */
export const tokenChoiceFields = {
  ...choiceFields,
  stop_reason: stopReasonSchema,
  matched_stop: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: scannedLogprobsSchema,
};

/** Fields of a reply that is not streamed, beside its choices. */
export const replyFields = {
  id: z.string().nullish(),
  model: z.string().nullish(),
  prompt_token_ids: idsSchema,
  usage: usageSchema,
};

type Texts = Pick<Message, 'content' | 'refusal' | 'reasoning' | 'reasoning_content'>;

/** Returns the thinking. Servers have two names for the field, and some send both, one of them empty. */
export function thinkingOf({ reasoning, reasoning_content }: Texts): string {
  return reasoning || reasoning_content || '';
}

/** Returns the text. A refusal is also text that the model sampled, but it has its own field. */
export function sampledTextOf({ content, refusal }: Texts): string {
  return content || refusal || '';
}

/** Converts the message of a chat completion to floe's form. */
export function messageFrom(message: Message): AssistantMessage {
  const calls = toolCallsFrom(message.tool_calls);
  return assistantMessage(contentWithCalls(sampledTextOf(message), calls), thinkingOf(message), calls);
}

type Stops = {
  readonly stop_reason?: z.output<typeof stopReasonSchema>;
  readonly matched_stop?: z.output<typeof stopReasonSchema>;
};

/**
 * Returns the stop token or stop string that a choice reports: `null` when a field for it is present without a value, and `undefined` when
 * there is no such field.
 */
export function reportedStop({ stop_reason, matched_stop }: Stops): z.output<typeof stopReasonSchema> {
  return stop_reason ?? matched_stop ?? (stop_reason === undefined ? matched_stop : stop_reason);
}
