import { z } from 'zod';
import type { AssistantMessage, FinishReason, StopCause, Usage, VersionSpan } from '../../schema/index.ts';
import type { SampledTokens } from '../engine.ts';
import {
  brokenOffEarly,
  finishOf,
  isLogprob,
  refusal,
  refuseCount,
  refuseLogprob,
  spansOf,
  usageOf as toldUsage,
  versionsSchema,
} from '../record.ts';

export const idListSchema = z.array(
  z
    .int()
    .min(0)
    .max(2 ** 31 - 1),
);

const matchedSchema = z.union([z.int(), z.string()]).nullish();

/** Of `/generate`, and of a chat completion that was asked for it. */
export const metaInfoSchema = z.looseObject({
  id: z.string().nullish(),
  finish_reason: z.looseObject({ type: z.string(), matched: matchedSchema, message: z.string().nullish() }).nullish(),
  prompt_tokens: z.int().min(0).nullish(),
  completion_tokens: z.int().min(0).nullish(),
  cached_tokens: z.int().nullish(),
  weight_version: z.union([z.string(), z.int()]).nullish(),
  weight_versions: versionsSchema,
  // Looked at by hand: one schema object per token costs more than everything else in a reply.
  output_token_logprobs: z.array(z.unknown()).nullish(),
  routed_experts: z.string().nullish(),
});
export type MetaInfo = z.output<typeof metaInfoSchema>;

export const matchedStopSchema = matchedSchema;

/** SGLang's name for weights that were never named. */
const UNNAMED = 'default';

/** What SGLang says of a sampled reply, wherever it says it. */
export type ReplyFacts = {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versions: z.output<typeof versionsSchema>;
  /** Of the weights at the reply's end; null: not told. */
  readonly endVersion: string | null;
  readonly finishReason: string;
  readonly matched: z.output<typeof matchedSchema>;
  readonly usage: Usage;
  /** Base64 of the raw numbers. */
  readonly experts: string | null;
};

/** A reply that may be recorded, but for what only the adapter knows. */
export type SampledReply = Omit<SampledTokens, 'versionSpans' | 'routedExperts'> & {
  readonly promptIds: Int32Array;
  readonly versionSpans: readonly VersionSpan[] | null;
  readonly endVersion: string | null;
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
  readonly experts: string | null;
};

export type ChatReply = SampledReply & { readonly message: AssistantMessage };

/**
 * Throws `engine_error`, naming what is wrong, for everything that cannot be trained on; `engine_unavailable` for a reply that
 * was broken off before its first token, since another one may be sampled instead.
 */
export function recordable(facts: ReplyFacts, ends: ReplyEnds): SampledReply {
  const { promptIds, responseIds, responseLogprobs, usage } = facts;
  const finishReason = finishOf(facts.finishReason);
  refuseCount('the prompt', promptIds.length, 'prompt_tokens', usage.prompt_tokens);
  refuseCount('the reply', responseIds.length, 'completion_tokens', usage.completion_tokens);
  if (responseIds.length === 0) {
    throw finishReason === 'abort' ? brokenOffEarly() : refusal('nothing was sampled');
  }
  return {
    promptIds,
    responseIds,
    responseLogprobs,
    versionSpans: spansOf(facts.versions, responseIds.length),
    endVersion: facts.endVersion,
    finishReason,
    stop: stopOf(facts.matched, finishReason, responseIds, ends),
    usage,
    experts: facts.experts,
  };
}

/** What a reply may end by: the stop strings that were asked for, and the ids that close a turn as far as they are known. */
export type ReplyEnds = { readonly stop: readonly string[]; readonly closeIds: readonly number[] };

/**
 * SGLang keeps the stop token in the ids. Of a reply with tool calls it does not say what stopped it; then it is the last id,
 * unless that may as well be the end of a stop string.
 */
function stopOf(
  matched: ReplyFacts['matched'],
  finish: FinishReason,
  ids: Int32Array,
  { stop, closeIds }: ReplyEnds,
): StopCause | null {
  if (finish !== 'stop' && finish !== 'tool_calls') return null;
  if (typeof matched === 'string') return { kind: 'string', text: matched };
  if (typeof matched === 'number') return { kind: 'token', id: matched };
  const last = ids.at(-1);
  if (last === undefined || (stop.length > 0 && !closeIds.includes(last))) return null;
  return { kind: 'token', id: last };
}

export type IdsAndLogprobs = { readonly ids: Int32Array; readonly logprobs: Float32Array };

/** Reads `output_token_logprobs`: `[log-probability, id, text]` of each token. `ids`: the same as told in another place, if it was. */
export function readTuples(tuples: readonly unknown[], ids: readonly number[] | null): IdsAndLogprobs {
  const field = 'meta_info.output_token_logprobs';
  if (ids !== null && ids.length !== tuples.length) {
    throw refusal(`${field} has ${tuples.length} entries for ${ids.length} ids`);
  }
  const own = new Int32Array(tuples.length);
  const logprobs = new Float32Array(tuples.length);
  for (let i = 0; i < tuples.length; i++) {
    const tuple = tuples[i];
    const [value, id]: unknown[] = Array.isArray(tuple) ? tuple : [];
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id >= 2 ** 31) {
      throw refusal(`${field}.${i} has no token id`);
    }
    if (ids !== null && ids[i] !== id) throw refusal(`${field}.${i} is of ${id}, but the reply's id ${i} is ${ids[i]}`);
    own[i] = id;
    logprobs[i] = isLogprob(value) ? value : refuseLogprob(value, `${field}.${i}`);
  }
  return { ids: own, logprobs };
}

/** Reads log-probabilities in OpenAI's form, which has no ids, so that their number is all that can be checked. */
export function readContent(content: readonly unknown[] | null | undefined, count: number): Float32Array {
  if (!content) throw refusal('logprobs.content is missing');
  if (content.length !== count) throw refusal(`logprobs.content has ${content.length} entries for ${count} ids`);
  return Float32Array.from(content, (entry, i) => {
    const value = typeof entry === 'object' && entry !== null && 'logprob' in entry ? entry.logprob : undefined;
    return isLogprob(value) ? value : refuseLogprob(value, `logprobs.content.${i}.logprob`);
  });
}

/** The usage of a reply whose cached tokens are told in another place, or not at all. */
export function usageOf(prompt: number, completion: number, cached: number | null | undefined): Usage {
  const details = { cached_tokens: cached ?? null };
  return toldUsage({ prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details });
}

/** The name of the weights; null where nobody gave them one. */
export function versionName(told: string | number | null | undefined): string | null {
  return told === null || told === undefined || told === UNNAMED ? null : String(told);
}

/** Throws `engine_error` unless the reply was prompted by what was sent. */
export function refuseOtherPrompt(sent: Int32Array, used: Int32Array): void {
  if (sent.length !== used.length)
    throw refusal(`it was prompted with ${used.length} ids, not the ${sent.length} sent`);
  const at = sent.findIndex((id, index) => used[index] !== id);
  if (at >= 0) throw refusal(`it was prompted with other ids than those sent: ${used[at]} for ${sent[at]} at ${at}`);
}
