import { z } from 'zod';
import type { AssistantMessage } from '../../schema/index.ts';
import { assistantMessage, callsSchema, toolCalls } from '../assistant-message.ts';
import type { IdScanner } from '../id-scan.ts';
import { scanLogprobs } from '../logprob-scan.ts';
import {
  finishOf,
  foreignUsageSchema,
  idsOf,
  idsSchema,
  logprobsIn,
  type ParsedReply,
  parseReplyJson,
  recordable,
  refusal,
  refuseForeignId,
  refuseForeignModel,
  scannedLogprobsSchema,
  shaped,
  stopReasonSchema,
  usageOf,
  versionsSchema,
} from '../record.ts';
import { foreignRoutingSchema, routedExpertsOf } from './routing.ts';

const messageSchema = z.looseObject({
  content: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: callsSchema,
});
type ForeignMessage = z.output<typeof messageSchema>;

const choiceSchema = z.looseObject({
  message: messageSchema,
  finish_reason: z.string(),
  stop_reason: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: scannedLogprobsSchema,
  weight_versions: versionsSchema,
  routed_experts: foreignRoutingSchema,
});
type ForeignChoice = z.output<typeof choiceSchema>;

const replySchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  prompt_token_ids: idsSchema,
  usage: foreignUsageSchema,
});

/** What a reply has to agree with. */
export type ReplyContext = {
  readonly completionId: string;
  readonly sessionId: string;
  /** Names of the model that the engine was registered with. */
  readonly models: ReadonlySet<string>;
  readonly scanner: IdScanner;
};

/** Reads a 200 reply of vLLM that came whole. Throws `engine_error`, naming what is wrong, for everything that cannot be trained on. */
export function parseReply(body: Buffer, context: ReplyContext): ParsedReply {
  const scanned = context.scanner.scan(body, 'prompt_token_ids', context.sessionId);
  const logprobs = scanLogprobs(body);
  const reply = shaped(replySchema, parseReplyJson(body, scanned, logprobs));
  refuseForeign(reply, context);
  const choice = reply.choices[0] as ForeignChoice;
  const promptIds = idsOf(reply.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids');
  const responseIds = idsOf(choice.token_ids, null, 'token_ids');
  return recordable({
    promptIds,
    responseIds,
    logprobs: logprobsIn(choice.logprobs?.content, logprobs),
    versions: choice.weight_versions,
    message: messageOf(choice.message),
    finishReason: choice.finish_reason,
    stopReason: choice.stop_reason,
    usage: reply.usage,
    routedExperts: routedExpertsOf(choice.routed_experts, promptIds.length + responseIds.length),
  });
}

/** Reads a 200 reply of a server that tells no token ids. Throws `engine_error`. */
export function parseTextReply(body: Buffer, context: ReplyContext): ParsedReply {
  const reply = shaped(replySchema, parseReplyJson(body, null));
  refuseForeign(reply, context);
  const choice = reply.choices[0] as ForeignChoice;
  const reason = choice.stop_reason;
  return {
    promptIds: new Int32Array(0),
    responseIds: new Int32Array(0),
    responseLogprobs: new Float32Array(0),
    versionSpans: [],
    routedExperts: null,
    message: messageOf(choice.message),
    finishReason: finishOf(choice.finish_reason),
    stop: typeof reason === 'string' ? { kind: 'string', text: reason } : null,
    usage: usageOf(reply.usage),
  };
}

type Named = { readonly id?: string | null | undefined; readonly model?: string | null | undefined };

/** Throws `engine_error` for a reply to another call, or of another model. */
export function refuseForeign({ id, model }: Named, { completionId, models }: ReplyContext): void {
  refuseForeignId(id, completionId);
  refuseForeignModel(model, models);
}

const derenderedSchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(z.looseObject({ message: messageSchema })).length(1),
  usage: z.looseObject({ completion_tokens: z.int().min(0).nullish() }).nullish(),
});

/**
 * The message that vLLM's parsers read out of ids. Throws `engine_error` for an answer to another call, of another model, or to
 * another number of ids than `idCount`.
 */
export function parseDerendered(body: Buffer, context: ReplyContext, idCount: number): AssistantMessage {
  const reply = shaped(derenderedSchema, parseReplyJson(body, null));
  refuseForeign(reply, context);
  const counted = reply.usage?.completion_tokens ?? idCount;
  if (counted !== idCount) {
    throw refusal(`the derendered message is of ${counted} ids, not of the ${idCount} that were sent`);
  }
  return messageOf(reply.choices[0]?.message ?? {});
}

function messageOf({ content, reasoning, reasoning_content, tool_calls }: ForeignMessage): AssistantMessage {
  return assistantMessage(content ?? '', reasoning ?? reasoning_content ?? '', toolCalls(tool_calls));
}
