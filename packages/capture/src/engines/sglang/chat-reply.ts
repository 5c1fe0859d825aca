import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { assistantMessage, contentWithCalls, toolCallsFrom, toolCallsSchema } from '../chat/messages.ts';
import type { IdScanner, ScannedIds } from '../chat/reply-scan.ts';
import {
  assertReplyId,
  assertReplyModel,
  idsFrom,
  idsSchema,
  invalidReply,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  tokenIdsSchema,
  usageSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import {
  type ChatReply,
  checkedReply,
  type IdsAndLogprobs,
  matchedStopSchema,
  metaInfoSchema,
  type ReplyCall,
  type ReplyEnds,
  readContent,
  readTuples,
  usageOf,
  versionOf,
} from './reply.ts';
import type { IdFlags } from './request.ts';

const messageSchema = z.looseObject({
  content: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: toolCallsSchema,
});

const choiceSchema = z.looseObject({
  message: messageSchema,
  finish_reason: z.string(),
  matched_stop: matchedStopSchema,
  prompt_token_ids: idsSchema,
  token_ids: tokenIdsSchema.nullish(),
  // Some builds of SGLang use this name for the field `token_ids`.
  response_token_ids: tokenIdsSchema.nullish(),
  logprobs: logprobsSchema,
  meta_info: metaInfoSchema.nullish(),
});
type ForeignChoice = z.output<typeof choiceSchema>;

export const sglextSchema = z.looseObject({
  input_ids: idsSchema,
  output_ids: z.array(tokenIdsSchema).nullish(),
  routed_experts: z.string().nullish(),
});

export const metadataSchema = z.looseObject({
  weight_version: z.union([z.string(), z.int()]).nullish(),
  weight_versions: versionsSchema,
});

const replySchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  usage: usageSchema,
  metadata: metadataSchema.nullish(),
  sglext: sglextSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

/** Properties of the request that are needed to parse the chat completion. */
export type ChatReplyOptions = {
  /** Name of the reply field that contains the prompt's token ids. */
  readonly promptKey: string;
  readonly ends: ReplyEnds;
  /** Name of the requested model, which the server repeats in its reply. */
  readonly model: string;
};

/** Returns the name of the reply field in which a server puts the prompt's token ids when a request has these flags. */
export function promptKeyOf(flags: IdFlags): string {
  return flags.tokenIds || flags.promptIds ? 'prompt_token_ids' : 'input_ids';
}

/** Parses a chat completion of status 200 that is not streamed, of any supported SGLang release. Throws as {@link checkedReply} does. */
export function parseChatReply(
  body: Buffer,
  call: ReplyCall,
  scanner: IdScanner,
  options: ChatReplyOptions,
): ChatReply {
  const scanned = scanner.scan(body, options.promptKey, call.sessionId);
  const reply = parseWith(replySchema, parseReplyJson(body, scanned));
  assertReplyId(reply.id, call.completionId);
  assertReplyModel(reply.model, new Set([options.model]));
  const choice = reply.choices[0] as ForeignChoice;
  const meta = choice.meta_info;
  assertReplyId(meta?.id, call.completionId);
  const { ids, logprobs } = sampledOf(reply, choice);
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = reply.usage;
  const sampled = checkedReply(
    {
      promptIds: promptOf(reply, choice, scanned),
      responseIds: ids,
      responseLogprobs: logprobs,
      versions: meta?.weight_versions ?? reply.metadata?.weight_versions,
      endVersion: versionOf(meta?.weight_version ?? reply.metadata?.weight_version),
      finishReason: choice.finish_reason,
      matched: choice.matched_stop ?? meta?.finish_reason?.matched,
      usage: usageOf(prompt_tokens, completion_tokens, meta?.cached_tokens ?? prompt_tokens_details?.cached_tokens),
      experts: meta?.routed_experts ?? reply.sglext?.routed_experts ?? null,
    },
    options.ends,
  );
  return { ...sampled, message: assistantMessageOf(choice.message) };
}

/**
 * Reads the sampled token ids and their log-probabilities from the fields that the server's release uses. Throws `engine_error` when two
 * fields contain different ids.
 */
function sampledOf({ sglext }: ForeignReply, choice: ForeignChoice): IdsAndLogprobs {
  const own = choice.token_ids ?? choice.response_token_ids;
  const lists = sglext?.output_ids;
  if (lists && lists.length !== 1) throw invalidReply(`sglext.output_ids has ${lists.length} lists for one choice`);
  const extra = lists?.[0];
  if (own && extra && !(own.length === extra.length && own.every((id, index) => extra[index] === id))) {
    throw invalidReply('token_ids and sglext.output_ids are not the same');
  }
  const ids = own ?? extra ?? null;
  const tuples = choice.meta_info?.output_token_logprobs;
  if (tuples) return readTuples(tuples, ids);
  if (ids === null) throw invalidReply('its token ids are missing; the server does not honour return_token_ids');
  // A reply that was aborted before its first token has no log-probabilities.
  const content = ids.length === 0 ? [] : choice.logprobs?.content;
  return { ids: Int32Array.from(ids), logprobs: readContent(content, ids.length) };
}

function promptOf({ sglext }: ForeignReply, choice: ForeignChoice, scanned: ScannedIds | null): Int32Array {
  return choice.prompt_token_ids == null && sglext?.input_ids != null
    ? idsFrom(sglext.input_ids, scanned, 'sglext.input_ids')
    : idsFrom(choice.prompt_token_ids, scanned, 'prompt_token_ids');
}

function assistantMessageOf({
  content,
  reasoning_content,
  tool_calls,
}: z.output<typeof messageSchema>): AssistantMessage {
  const calls = toolCallsFrom(tool_calls);
  return assistantMessage(contentWithCalls(content ?? '', calls), reasoning_content ?? '', calls);
}
