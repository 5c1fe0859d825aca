import { z } from 'zod';
import type { IdScanner } from '../id-scan.ts';
import { idsOf, idsSchema, parseReplyJson, refusal, refuseForeignId, shaped } from '../record.ts';
import type { ReplyCall } from './chat-reply.ts';
import {
  idListSchema,
  metaInfoSchema,
  type ReplyEnds,
  readTuples,
  recordable,
  type SampledReply,
  usageOf,
  versionName,
} from './facts.ts';

const nativeSchema = z.looseObject({
  text: z.string(),
  output_ids: idListSchema.nullish(),
  prompt_token_ids: idsSchema,
  meta_info: metaInfoSchema,
});

/** The text is without the token or string that stopped it. */
export type NativeReply = SampledReply & { readonly text: string };

/** Reads a 200 reply of `/generate` that came whole. `sent`: what it was prompted with. Throws as {@link parseChatReply} does. */
export function parseNativeReply(
  body: Buffer,
  call: ReplyCall & { readonly sent: Int32Array },
  scanner: IdScanner,
  ends: ReplyEnds,
): NativeReply {
  const scanned = scanner.scan(body, 'prompt_token_ids', call.sessionId);
  const reply = shaped(nativeSchema, parseReplyJson(body, scanned));
  const meta = reply.meta_info;
  refuseForeignId(meta.id, call.completionId);
  const { finish_reason: finish, prompt_tokens, completion_tokens } = meta;
  if (!finish) throw refusal('meta_info.finish_reason is missing');
  if (typeof prompt_tokens !== 'number') throw refusal('meta_info.prompt_tokens is missing');
  if (typeof completion_tokens !== 'number') throw refusal('meta_info.completion_tokens is missing');
  const { ids, logprobs } = readTuples(
    meta.output_token_logprobs ?? missing(reply.output_ids),
    reply.output_ids ?? null,
  );
  const told = reply.prompt_token_ids;
  const sampled = recordable(
    {
      // Releases that do not know return_prompt_token_ids tell the number alone, which is checked against these.
      promptIds: told === null || told === undefined ? call.sent : idsOf(told, scanned, 'prompt_token_ids'),
      responseIds: ids,
      responseLogprobs: logprobs,
      versions: meta.weight_versions,
      endVersion: versionName(meta.weight_version),
      finishReason: finish.type,
      matched: finish.matched,
      usage: usageOf(prompt_tokens, completion_tokens, meta.cached_tokens),
      experts: meta.routed_experts ?? null,
    },
    ends,
  );
  return { ...sampled, text: reply.text };
}

/** A reply that was aborted before its first token may have no list at all. */
function missing(ids: readonly number[] | null | undefined): readonly unknown[] {
  if (ids?.length === 0) return [];
  throw refusal('meta_info.output_token_logprobs is missing');
}
