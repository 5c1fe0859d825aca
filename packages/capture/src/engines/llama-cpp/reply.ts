import type { StopCause } from '@floe-rl/core/schema';
import { z } from 'zod';
import {
  abortedBeforeFirstToken,
  assertReplyModel,
  invalidReply,
  logprobFrom,
  parseWith,
  tokenIdSchema,
} from '../chat/reply-tokens.ts';

const replySchema = z.looseObject({
  model: z.string().nullish(),
  tokens: z.array(tokenIdSchema),
  tokens_predicted: z.int().min(0),
  tokens_evaluated: z.int().min(0),
  truncated: z.boolean().nullish(),
  // The value `none` means that the server broke off the reply.
  stop_type: z.enum(['eos', 'limit', 'word', 'none']),
  stopping_word: z.string().nullish(),
  timings: z.looseObject({ cache_n: z.int().nullish() }).nullish(),
  completion_probabilities: z.array(z.unknown()).nullish(),
});

/** A parsed reply of `/completion`. `known` has a log-probability for each id, NaN where the server reports none. */
export type SampledReply = {
  readonly ids: Int32Array;
  readonly known: Float32Array;
  readonly stop: StopCause | null;
  readonly cachedTokens: number | null;
};

/** Values, known from the request and the server's configuration, that a reply must match. */
type ExpectedReply = {
  readonly modelNames: ReadonlySet<string>;
  readonly promptTokens: number;
  /** Maximum number of tokens that this call may sample; `null` when only the context length limits them. */
  readonly maxNewTokens: number | null;
  readonly contextTokens: number;
};

/**
 * Parses a reply of `/completion`. Throws `engine_error`, which states what is wrong, for a reply that does not match the request. Throws
 * `engine_unavailable` for a reply that was aborted before its first token, because the request can be retried without losing a token.
 */
export function parseSampled(json: unknown, expected: ExpectedReply): SampledReply {
  const reply = parseWith(replySchema, json);
  assertReplyModel(reply.model, expected.modelNames);
  const { tokens, tokens_predicted: predicted, tokens_evaluated: evaluated } = reply;
  if (evaluated !== expected.promptTokens) {
    throw invalidReply(`tokens_evaluated is ${evaluated}, but ${expected.promptTokens} ids were sent`);
  }
  if (tokens.length !== predicted) {
    throw invalidReply(
      `tokens has ${tokens.length} ids, but tokens_predicted is ${predicted}; the server may not support return_tokens`,
    );
  }
  if (tokens.length === 0) {
    throw reply.stop_type === 'none'
      ? abortedBeforeFirstToken()
      : invalidReply('tokens is empty: no token was sampled');
  }
  if (expected.maxNewTokens !== null && tokens.length > expected.maxNewTokens) {
    throw invalidReply(`tokens has ${tokens.length} ids, more than the bound of ${expected.maxNewTokens}`);
  }
  if (reply.truncated === true && evaluated + predicted > expected.contextTokens) {
    throw invalidReply(
      'the context was shifted, so that the end of the reply has another prompt; start the server without context shift',
    );
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
  if (reply.stop_type === 'none') throw invalidReply('stop_type is none: the reply is incomplete');
  if (!reply.stopping_word) throw invalidReply('stop_type is word, but stopping_word is missing');
  return { kind: 'string', text: reply.stopping_word };
}

/**
 * Assigns the log-probabilities of `entries` to positions of `ids`. Positions without a log-probability get NaN, because the server omits
 * tokens that end inside a multi-byte character, and tokens of a stop string. Each entry has the token id. An entry that could belong to
 * several positions is not used.
 */
export function knownLogprobs(entries: readonly unknown[] | null | undefined, ids: Int32Array): Float32Array {
  if (entries === null || entries === undefined) throw invalidReply('completion_probabilities is missing');
  const reported = entries.map(tokenLogprobFrom);
  const known = new Float32Array(ids.length).fill(Number.NaN);
  const first = new Int32Array(reported.length);
  let at = 0;
  for (const [index, entry] of reported.entries()) {
    while (at < ids.length && ids[at] !== entry.id) at++;
    if (at === ids.length) {
      throw invalidReply(
        `completion_probabilities.${index} is of ${entry.id}, which tokens does not have at that position`,
      );
    }
    first[index] = at++;
  }
  at = ids.length - 1;
  for (let index = reported.length - 1; index >= 0; index--) {
    const entry = reported[index] as TokenLogprob;
    while (ids[at] !== entry.id) at--;
    if (at === first[index]) known[at] = entry.logprob;
    at--;
  }
  return known;
}

export type TokenLogprob = { readonly id: number; readonly logprob: number };

/**
 * Parses one log-probability entry. It uses no schema, for speed, because a reply has one entry per token. The server sends `prob` instead
 * of `logprob` when probabilities after sampling were requested.
 */
function tokenLogprobFrom(value: unknown, index: number): TokenLogprob {
  const entry = value as { id?: unknown; logprob?: unknown; prob?: unknown } | null;
  const field = `completion_probabilities.${index}`;
  if (typeof entry !== 'object' || entry === null || typeof entry.id !== 'number') {
    throw invalidReply(`${field}.id is missing`);
  }
  const { id, logprob, prob } = entry;
  const number = typeof prob === 'number' ? Math.log(prob) : logprob;
  return { id, logprob: logprobFrom(number, `${field}.logprob`) };
}

const distributionSchema = z.looseObject({
  completion_probabilities: z.tuple([
    z.looseObject({ top_logprobs: z.array(z.looseObject({ id: tokenIdSchema, logprob: z.number() })).min(1) }),
  ]),
});

/**
 * Parses the log-probabilities of the most likely tokens, sorted from the most likely. Throws `engine_error` for a reply of another
 * shape.
 */
export function parseDistribution(json: unknown): readonly TokenLogprob[] {
  const [entry] = parseWith(distributionSchema, json).completion_probabilities;
  return entry.top_logprobs;
}
