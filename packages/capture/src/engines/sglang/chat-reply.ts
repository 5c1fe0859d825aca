import { z } from 'zod';
import { checkedReply, type LogprobColumns, type ReplyEnds } from '../chat/checked-reply.ts';
import { messageFrom, messageSchema, replyFields, reportedStop, tokenChoiceFields } from '../chat/reply-fields.ts';
import type { IdScanner, ScannedIds } from '../chat/reply-scan.ts';
import {
  assertReplyId,
  assertReplyModel,
  finishReasonFrom,
  idsFrom,
  idsSchema,
  invalidReply,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  tokenIdsSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import {
  type ChatReply,
  metaInfoSchema,
  ownReply,
  type ReplyCall,
  readTuples,
  TUPLES_FIELD,
  usageOf,
  versionOf,
} from './reply.ts';
import type { IdFlags } from './request.ts';

const choiceSchema = z.object({
  ...tokenChoiceFields,
  message: messageSchema,
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

const replySchema = z.object({
  ...replyFields,
  choices: z.tuple([choiceSchema]),
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
  const [choice] = reply.choices;
  const meta = choice.meta_info;
  assertReplyId(meta?.id, call.completionId);
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = reply.usage;
  const checked = checkedReply({
    ...sampledOf(reply, choice),
    promptIds: promptOf(reply, choice, scanned),
    versions: meta?.weight_versions ?? reply.metadata?.weight_versions,
    message: messageFrom(choice.message),
    finishReason: finishReasonFrom(choice.finish_reason),
    reported: reportedStop(choice) ?? meta?.finish_reason?.matched,
    ends: options.ends,
    usage: usageOf(prompt_tokens, completion_tokens, meta?.cached_tokens ?? prompt_tokens_details?.cached_tokens),
  });
  return ownReply(checked, {
    endVersion: versionOf(meta?.weight_version ?? reply.metadata?.weight_version),
    experts: meta?.routed_experts ?? reply.sglext?.routed_experts ?? null,
  });
}

type SampledFields = {
  readonly responseIds: Int32Array;
  readonly logprobs: readonly unknown[] | LogprobColumns | null | undefined;
  readonly logprobsField?: string;
};

/**
 * Reads the sampled token ids and their log-probabilities from the fields that the server's release uses. Throws `engine_error` when two
 * fields contain different ids.
 */
function sampledOf({ sglext }: ForeignReply, choice: ForeignChoice): SampledFields {
  const own = choice.token_ids ?? choice.response_token_ids ?? null;
  const ids = sameIds(own, listedIds(sglext), 'token_ids');
  const tuples = choice.meta_info?.output_token_logprobs;
  if (tuples) {
    const logprobs = readTuples(tuples);
    return { responseIds: Int32Array.from(ids ?? logprobs.ids), logprobs, logprobsField: TUPLES_FIELD };
  }
  if (ids === null) throw invalidReply('its token ids are missing; the server does not honour return_token_ids');
  return { responseIds: Int32Array.from(ids), logprobs: choice.logprobs?.content };
}

/** Returns the ids that `sglext` lists for the only choice; `null` when it lists none. Throws `engine_error` for several lists. */
export function listedIds(sglext: z.output<typeof sglextSchema> | null | undefined): readonly number[] | null {
  const lists = sglext?.output_ids;
  if (!lists) return null;
  if (lists.length !== 1) throw invalidReply(`sglext.output_ids has ${lists.length} lists for one choice`);
  return lists[0] ?? [];
}

/** Returns the ids of the reply's own field, or the ids of `sglext`. Throws `engine_error` when the reply has both and they differ. */
export function sameIds<T extends ArrayLike<number>>(
  own: T | null,
  listed: readonly number[] | null,
  field: string,
): T | readonly number[] | null {
  if (own === null || listed === null) return own ?? listed;
  if (own.length === listed.length && listed.every((id, index) => own[index] === id)) return own;
  throw invalidReply(`${field} and sglext.output_ids are not the same`);
}

function promptOf({ sglext }: ForeignReply, choice: ForeignChoice, scanned: ScannedIds | null): Int32Array {
  return choice.prompt_token_ids == null && sglext?.input_ids != null
    ? idsFrom(sglext.input_ids, scanned, 'sglext.input_ids')
    : idsFrom(choice.prompt_token_ids, scanned, 'prompt_token_ids');
}
