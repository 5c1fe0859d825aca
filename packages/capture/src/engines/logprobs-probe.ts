import type { LogprobsMode } from '@floe-rl/core/schema';
import { z } from 'zod';
import { hasAnswered } from './engine-server.ts';

/** Number of likely tokens whose log-probabilities a probe call requests. All engines permit this number by default. */
export const PROBE_TOP_LOGPROBS = 5;

/** Temperatures of the two probe calls. Any difference of processed log-probabilities is inversely proportional to the temperature. */
const WARM = 1;
const COOL = 0.5;

/** The log-probability that engines report for an impossible token, because JSON has no -Infinity. */
const LOGPROB_FLOOR = -9999;

/**
 * Minimum of the mean difference at temperature {@link WARM}, in nats. A log-probability may differ by 0.1 between two replies to the same
 * prompt, because servers compute logits in 16 bits and in another order in every batch. Such errors cannot make a difference of
 * this size look twice as large or half as large.
 */
const MIN_DIFFERENCE = 1;

/** Largest factor between the measured ratio and the ratio of a mode. The ranges of the two modes do not overlap. */
const TOLERANCE = 1.25;

/** The log-probabilities of the likely tokens at one position, keyed by the token's name. */
export type TopLogprobs = ReadonlyMap<string, number>;

/** Schema of the part of a chat completion that contains the likely tokens of each position. */
export const topLogprobsSchema = z.looseObject({
  choices: z
    .array(
      z.looseObject({
        logprobs: z
          .looseObject({
            content: z
              .array(
                z.looseObject({
                  top_logprobs: z.array(z.looseObject({ token: z.string(), logprob: z.number().nullable() })).nullish(),
                }),
              )
              .nullish(),
          })
          .nullish(),
      }),
    )
    .min(1),
});

/**
 * Returns the log-probabilities of the likely tokens at the first position of a reply; an empty map when the reply contains none. Tokens
 * without a usable log-probability are left out, and so are tokens whose name occurs twice, because some servers name tokens by their text.
 */
export function firstTopLogprobs({ choices }: z.output<typeof topLogprobsSchema>): TopLogprobs {
  const entries = choices[0]?.logprobs?.content?.[0]?.top_logprobs ?? [];
  const top = new Map<string, number>();
  for (const { token, logprob } of entries) {
    const isUnique = entries.filter((other) => other.token === token).length === 1;
    if (isUnique && logprob !== null && logprob > LOGPROB_FLOOR) top.set(token, logprob);
  }
  return top;
}

/**
 * Determines the mode from the log-probabilities of one position at the temperatures 1 and 0.5. The differences between tokens are the same at
 * both temperatures when the log-probabilities are raw. They are twice as large at 0.5 when the log-probabilities are processed. Returns
 * `null` in all other cases, and when the differences are too small.
 */
export function logprobsModeOf(warm: TopLogprobs, cool: TopLogprobs): LogprobsMode | null {
  const common = [...warm]
    .map(([token, logprob]) => ({ warm: logprob, cool: cool.get(token) ?? Number.NaN }))
    .filter((token) => !Number.isNaN(token.cool))
    .sort((a, b) => b.warm - a.warm);
  const [likeliest, ...others] = common;
  if (likeliest === undefined || others.length === 0) return null;
  const differenceAt = (at: 'warm' | 'cool'): number =>
    others.reduce((sum, token) => sum + likeliest[at] - token[at], 0) / others.length;
  const difference = differenceAt('warm');
  if (difference < MIN_DIFFERENCE) return null;
  const ratio = differenceAt('cool') / difference;
  if (isNear(ratio, 1)) return 'raw';
  return isNear(ratio, WARM / COOL) ? 'processed' : null;
}

function isNear(ratio: number, expected: number): boolean {
  return ratio < expected * TOLERANCE && ratio > expected / TOLERANCE;
}

export type ProbedLogprobs = {
  readonly mode: LogprobsMode;
  /** One sentence for the operator when the mode was not measured or differs from the configured mode; otherwise empty. */
  readonly notes: readonly string[];
  /** Whether a later measurement may succeed, because the server was only paused, busy, not available or failing. */
  readonly isRepeatable: boolean;
};

/**
 * Measures the mode of an engine's log-probabilities. `topAt` samples one token at a temperature, with the same prompt in every call and
 * without cut-offs and penalties. When the mode cannot be measured, the result has the `configured` mode. Rejects when the server cannot be
 * reached or a reply is incomplete or late.
 */
export async function probeLogprobs(
  configured: LogprobsMode,
  topAt: (temperature: number) => Promise<TopLogprobs>,
): Promise<ProbedLogprobs> {
  try {
    const warm = await topAt(WARM);
    const measured = logprobsModeOf(warm, await topAt(COOL));
    if (measured === null) return believedLogprobs(configured, 'the likely tokens of two replies show neither mode');
    return measuredLogprobs(configured, measured);
  } catch (error) {
    if (!hasAnswered(error)) throw error;
    const { status } = error.details;
    return believedLogprobs(configured, error.message, typeof status !== 'number' || status >= 500);
  }
}

/** Makes the result of a measurement, with a note when the measured mode differs from the configured mode. */
export function measuredLogprobs(configured: LogprobsMode, measured: LogprobsMode): ProbedLogprobs {
  const notes = measured === configured ? [] : [`logprobs_mode: configured ${configured}, measured ${measured}`];
  return { mode: measured, notes, isRepeatable: false };
}

/** Makes the result of a measurement that was not possible for `reason`. */
export function believedLogprobs(configured: LogprobsMode, reason: string, isRepeatable = false): ProbedLogprobs {
  return {
    mode: configured,
    notes: [`the configured logprobs_mode ${configured} is believed, because it cannot be measured: ${reason}`],
    isRepeatable,
  };
}
