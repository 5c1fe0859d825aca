import { z } from 'zod';
import type { StopCause } from '../../schema/index.ts';
import { brokenOffEarly, isLogprob, refusal, refuseForeignModel, refuseLogprob, shaped } from '../record.ts';

const idSchema = z
  .int()
  .min(0)
  .max(2 ** 31 - 1);

const replySchema = z.looseObject({
  model: z.string().nullish(),
  tokens: z.array(idSchema),
  tokens_predicted: z.int().min(0),
  tokens_evaluated: z.int().min(0),
  truncated: z.boolean().nullish(),
  // `none`: it had not come to its end.
  stop_type: z.enum(['eos', 'limit', 'word', 'none']),
  stopping_word: z.string().nullish(),
  timings: z.looseObject({ cache_n: z.int().nullish() }).nullish(),
  completion_probabilities: z.array(z.unknown()).nullish(),
});

/** A reply of `/completion`. `known` has a log-probability for each id, NaN where the server tells none. */
export type SampledReply = {
  readonly ids: Int32Array;
  readonly known: Float32Array;
  readonly stop: StopCause | null;
  readonly cachedTokens: number | null;
};

export type Expected = {
  readonly models: ReadonlySet<string>;
  readonly promptTokens: number;
  readonly maxNew: number | null;
  readonly contextTokens: number;
};

/**
 * Throws `engine_error`, naming what is wrong, for a reply that cannot be what was asked for; `engine_unavailable` for one that was
 * broken off before its first token, since another one may be sampled instead.
 */
export function parseSampled(json: unknown, expected: Expected): SampledReply {
  const reply = shaped(replySchema, json);
  refuseForeignModel(reply.model, expected.models);
  const { tokens, tokens_predicted: predicted, tokens_evaluated: evaluated } = reply;
  if (evaluated !== expected.promptTokens) {
    throw refusal(`tokens_evaluated is ${evaluated}, but ${expected.promptTokens} ids were sent`);
  }
  if (tokens.length !== predicted) {
    throw refusal(
      `tokens has ${tokens.length} ids, but tokens_predicted is ${predicted}; is return_tokens known there?`,
    );
  }
  if (tokens.length === 0) {
    throw reply.stop_type === 'none' ? brokenOffEarly() : refusal('tokens is empty: nothing was sampled');
  }
  if (expected.maxNew !== null && tokens.length > expected.maxNew) {
    throw refusal(`tokens has ${tokens.length} ids, more than the bound of ${expected.maxNew}`);
  }
  if (reply.truncated === true && evaluated + predicted > expected.contextTokens) {
    throw refusal('the context was shifted: the end of the reply was sampled after another prompt; run without it');
  }
  const ids = Int32Array.from(tokens);
  const cached = reply.timings?.cache_n ?? null;
  return {
    ids,
    known: knownLogprobs(reply.completion_probabilities, ids),
    stop: stopOf(reply, ids),
    cachedTokens: cached !== null && cached >= 0 && cached <= evaluated ? cached : null,
  };
}

function stopOf(reply: z.output<typeof replySchema>, ids: Int32Array): StopCause | null {
  if (reply.stop_type === 'limit') return null;
  if (reply.stop_type === 'eos') return { kind: 'token', id: ids.at(-1) as number };
  if (reply.stop_type === 'none') throw refusal('stop_type is none: it was broken off');
  if (!reply.stopping_word) throw refusal('stop_type is word, but stopping_word is missing');
  return { kind: 'string', text: reply.stopping_word };
}

/**
 * The server leaves out tokens behind which a character is incomplete, and those of a stop string. Each entry names its id; one
 * that could be of several places is not used, rather than put at a place that may be the wrong one.
 */
export function knownLogprobs(entries: readonly unknown[] | null | undefined, ids: Int32Array): Float32Array {
  if (entries === null || entries === undefined) throw refusal('completion_probabilities is missing');
  const told = entries.map(entryOf);
  const known = new Float32Array(ids.length).fill(Number.NaN);
  const first = new Int32Array(told.length);
  let at = 0;
  for (const [index, entry] of told.entries()) {
    while (at < ids.length && ids[at] !== entry.id) at++;
    if (at === ids.length)
      throw refusal(`completion_probabilities.${index} is of ${entry.id}, which tokens has not there`);
    first[index] = at++;
  }
  at = ids.length - 1;
  for (let index = told.length - 1; index >= 0; index--) {
    const entry = told[index] as Told;
    while (ids[at] !== entry.id) at--;
    if (at === first[index]) known[at] = entry.logprob;
    at--;
  }
  return known;
}

type Told = { readonly id: number; readonly logprob: number };

/** Checked by hand: there is one for each token. `prob` is what it is called when asked for after sampling. */
function entryOf(value: unknown, index: number): Told {
  const entry = value as { id?: unknown; logprob?: unknown; prob?: unknown } | null;
  const field = `completion_probabilities.${index}`;
  if (typeof entry !== 'object' || entry === null || typeof entry.id !== 'number')
    throw refusal(`${field}.id is missing`);
  const { id, logprob, prob } = entry;
  const number = typeof prob === 'number' ? Math.log(prob) : logprob;
  return { id, logprob: isLogprob(number) ? number : refuseLogprob(number, `${field}.logprob`) };
}

const distributionSchema = z.looseObject({
  completion_probabilities: z
    .array(z.looseObject({ top_logprobs: z.array(z.looseObject({ id: idSchema, logprob: z.number() })).min(1) }))
    .length(1),
});

/** The log-probabilities by id, most likely first. Throws `engine_error`. */
export function parseDistribution(json: unknown): readonly Told[] {
  const [entry] = shaped(distributionSchema, json).completion_probabilities;
  return entry?.top_logprobs ?? [];
}
