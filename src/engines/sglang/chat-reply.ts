import { z } from 'zod';
import type { AssistantMessage } from '../../schema/index.ts';
import { assistantMessage, besideCalls, callsSchema, toolCalls } from '../assistant-message.ts';
import type { IdScanner, ScannedIds } from '../id-scan.ts';
import {
  foreignUsageSchema,
  idsOf,
  idsSchema,
  logprobsSchema,
  parseReplyJson,
  refusal,
  refuseForeignId,
  refuseForeignModel,
  shaped,
  versionsSchema,
} from '../record.ts';
import {
  type ChatReply,
  type IdsAndLogprobs,
  idListSchema,
  matchedStopSchema,
  metaInfoSchema,
  type ReplyEnds,
  readContent,
  readTuples,
  recordable,
  usageOf,
  versionName,
} from './facts.ts';
import type { IdFlags } from './request.ts';

const messageSchema = z.looseObject({
  content: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: callsSchema,
});
type ForeignMessage = z.output<typeof messageSchema>;

const choiceSchema = z.looseObject({
  message: messageSchema,
  finish_reason: z.string(),
  matched_stop: matchedStopSchema,
  prompt_token_ids: idsSchema,
  token_ids: idListSchema.nullish(),
  // As some builds name the same.
  response_token_ids: idListSchema.nullish(),
  logprobs: logprobsSchema,
  meta_info: metaInfoSchema.nullish(),
});
type ForeignChoice = z.output<typeof choiceSchema>;

export const sglextSchema = z.looseObject({
  input_ids: idsSchema,
  output_ids: z.array(idListSchema).nullish(),
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
  usage: foreignUsageSchema,
  metadata: metadataSchema.nullish(),
  sglext: sglextSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

export type ReplyCall = { readonly completionId: string; readonly sessionId: string };

/** What a reply is read by. */
export type ReplyReading = {
  /** The field of the prompt's ids. */
  readonly key: string;
  readonly ends: ReplyEnds;
  /** The model that was asked for, which the server names in its reply. */
  readonly model: string;
};

/** Where a server puts the prompt's ids when it is asked with these flags. */
export function promptKey(flags: IdFlags): string {
  return flags.tokenIds || flags.promptIds ? 'prompt_token_ids' : 'input_ids';
}

/**
 * Reads a 200 reply of a chat completion that came whole, of any age. Throws `engine_error`, naming what is wrong, for everything that
 * cannot be trained on; `engine_unavailable` when it was broken off before its first token.
 */
export function parseChatReply(body: Buffer, call: ReplyCall, scanner: IdScanner, options: ReplyReading): ChatReply {
  const scanned = scanner.scan(body, options.key, call.sessionId);
  const reply = shaped(replySchema, parseReplyJson(body, scanned));
  refuseForeignId(reply.id, call.completionId);
  refuseForeignModel(reply.model, new Set([options.model]));
  const choice = reply.choices[0] as ForeignChoice;
  const meta = choice.meta_info;
  refuseForeignId(meta?.id, call.completionId);
  const { ids, logprobs } = sampledOf(reply, choice);
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = reply.usage;
  const versions = meta?.weight_versions ?? reply.metadata?.weight_versions;
  const sampled = recordable(
    {
      promptIds: promptOf(reply, choice, scanned),
      responseIds: ids,
      responseLogprobs: logprobs,
      versions,
      endVersion: versionName(meta?.weight_version ?? reply.metadata?.weight_version),
      finishReason: choice.finish_reason,
      matched: choice.matched_stop ?? meta?.finish_reason?.matched,
      usage: usageOf(prompt_tokens, completion_tokens, meta?.cached_tokens ?? prompt_tokens_details?.cached_tokens),
      experts: meta?.routed_experts ?? reply.sglext?.routed_experts ?? null,
    },
    options.ends,
  );
  return { ...sampled, message: messageOf(choice.message) };
}

/** Wherever ids are told twice they have to be the same. */
function sampledOf({ sglext }: ForeignReply, choice: ForeignChoice): IdsAndLogprobs {
  const own = choice.token_ids ?? choice.response_token_ids;
  const listed = sglext?.output_ids;
  if (listed && listed.length !== 1) throw refusal(`sglext.output_ids has ${listed.length} lists for one choice`);
  const extra = listed?.[0];
  if (own && extra && !(own.length === extra.length && own.every((id, index) => extra[index] === id))) {
    throw refusal('token_ids and sglext.output_ids are not the same');
  }
  const ids = own ?? extra ?? null;
  const tuples = choice.meta_info?.output_token_logprobs;
  if (tuples) return readTuples(tuples, ids);
  if (ids === null) throw refusal('its token ids are missing; the server does not honour return_token_ids');
  // A reply that was aborted before its first token has no log-probabilities.
  const content = ids.length === 0 ? [] : choice.logprobs?.content;
  return { ids: Int32Array.from(ids), logprobs: readContent(content, ids.length) };
}

function promptOf({ sglext }: ForeignReply, choice: ForeignChoice, scanned: ScannedIds | null): Int32Array {
  return choice.prompt_token_ids == null && sglext?.input_ids != null
    ? idsOf(sglext.input_ids, scanned, 'sglext.input_ids')
    : idsOf(choice.prompt_token_ids, scanned, 'prompt_token_ids');
}

function messageOf({ content, reasoning_content, tool_calls }: ForeignMessage): AssistantMessage {
  const calls = toolCalls(tool_calls);
  return assistantMessage(besideCalls(content ?? '', calls), reasoning_content ?? '', calls);
}
