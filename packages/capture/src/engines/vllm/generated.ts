import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type ComparedIds, compareIds, firstDifference, scanIds, scanLogprobs } from '../chat/reply-scan.ts';
import {
  idsFrom,
  idsSchema,
  invalidReply,
  logprobEntriesFrom,
  parseReplyJson,
  parseWith,
  scannedLogprobsSchema,
  usageSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import type { GenerateRequest, PromptIds } from '../engine.ts';
import {
  assertOwnReply,
  checkedReply,
  type ParsedReply,
  type ReplyContext,
  type ReplyFields,
  stopReasonSchema,
} from './reply.ts';
import { foreignRoutingSchema, routedExpertsOf } from './routing.ts';

/** The fields of a choice that have the same form in a whole reply of `/inference/v1/generate` and in the chunks of a stream. */
export const generatedFields = {
  token_ids: idsSchema,
  stop_reason: stopReasonSchema,
  weight_versions: versionsSchema,
  routed_experts: foreignRoutingSchema,
};

const choiceSchema = z.looseObject({
  ...generatedFields,
  logprobs: scannedLogprobsSchema,
  finish_reason: z.string(),
});

const replySchema = z.looseObject({
  request_id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  prompt_token_ids: idsSchema,
  usage: usageSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

const NO_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };
const NO_IDS = new Int32Array(0);

/** A request whose prompt is given as token ids. */
export type TokenRequest = GenerateRequest & { readonly prompt: PromptIds };

/**
 * The token ids that a call sends, which are its prompt and the tokens of `resumeFrom`. `text` is the JSON text of these ids without
 * brackets, `parts` are the arrays of ids, and `count` is their total number.
 */
export type SentIds = { readonly text: Buffer; readonly parts: readonly Int32Array[]; readonly count: number };

export type Generated = {
  /** The reply with an empty message, because the message is parsed later. */
  readonly sampled: ParsedReply;
  /** Whether the reply has the field `stop_reason`, even if its value is null. */
  readonly reportsStop: boolean;
};

/** The fields of a reply that are the same for all forms of replies, as far as they are not known before the call. */
type SampledFields = Pick<ReplyFields, 'responseIds' | 'logprobs' | 'versions' | 'finishReason' | 'stopReason'> & {
  readonly usage: ReplyFields['usage'] | null | undefined;
  readonly routing: z.output<typeof foreignRoutingSchema>;
};

/** Parses a whole reply of `/inference/v1/generate` with status 200. Throws `engine_error` for a reply that must not be recorded. */
export function parseGenerated(body: Buffer, sent: SentIds, context: ReplyContext): Generated {
  const compared = compareIds(body, 'prompt_token_ids', sent.text, sent.parts);
  const sampled = scanIds(body, 'token_ids');
  const logprobs = scanLogprobs(body);
  const prompt = compared && { ids: NO_IDS, start: compared.start, end: compared.end };
  const reply = parseWith(replySchema, parseReplyJson(body, prompt, logprobs, sampled));
  assertOwnReply({ id: reply.request_id, model: reply.model }, context);
  if (!showsSentPrompt(reply.prompt_token_ids, compared, sent)) assertVerifiable(reply.usage);
  const choice = reply.choices[0] as ForeignReply['choices'][number];
  return generatedOf(sent, {
    responseIds: idsFrom(choice.token_ids, sampled, 'token_ids'),
    logprobs: logprobEntriesFrom(choice.logprobs?.content, logprobs),
    versions: choice.weight_versions,
    finishReason: choice.finish_reason,
    stopReason: choice.stop_reason,
    usage: reply.usage,
    routing: choice.routed_experts,
  });
}

/** Checks the fields of a reply, whether it was streamed or not. Throws as {@link checkedReply} does. */
export function generatedOf(sent: SentIds, { usage, routing, ...fields }: SampledFields): Generated {
  const count = fields.responseIds.length;
  const sampled = checkedReply({
    ...fields,
    // The ids have already been compared with those that were sent. `checkedReply` only compares their number with the usage, so an array
    // of the right length suffices.
    promptIds: sent.parts.length === 1 ? (sent.parts[0] as Int32Array) : new Int32Array(sent.count),
    message: NO_MESSAGE,
    usage: usage ?? { prompt_tokens: sent.count, completion_tokens: count },
    routedExperts: routedExpertsOf(routing, sent.count + count),
  });
  return { sampled, reportsStop: fields.stopReason !== undefined };
}

/**
 * Whether a reply repeats the prompt's ids. `compared` is the result of {@link compareIds}. Throws `engine_error` when the reply answers a
 * prompt other than the one that was sent.
 */
export function showsSentPrompt(
  echoed: ForeignReply['prompt_token_ids'],
  compared: ComparedIds | null,
  sent: SentIds,
): boolean {
  if (compared === null && !Array.isArray(echoed)) {
    if (echoed !== null && echoed !== undefined) throw invalidReply('prompt_token_ids is not an array of ids');
    return false;
  }
  const difference = compared === null ? firstDifference(echoed as number[], sent.parts) : compared.difference;
  if (difference === null) return true;
  throw invalidReply(`prompt_token_ids are not the ${sent.count} ids that were sent, from index ${difference} on`);
}

/** Throws `engine_error` for a reply that shows neither its prompt's ids nor their number. */
function assertVerifiable(usage: ForeignReply['usage']): void {
  if (usage !== null && usage !== undefined) return;
  const reason = 'neither prompt_token_ids nor usage is present, so that its prompt cannot be verified';
  throw invalidReply(reason, undefined, { unverifiable: true });
}
