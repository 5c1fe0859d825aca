import type { LogprobsMode } from '@floe-rl/core/schema';
import { hasAnswered } from '../engine-server.ts';
import { believedLogprobs, measuredLogprobs, type ProbedLogprobs } from '../logprobs-probe.ts';
import { probeBody, scoringBody } from './request.ts';
import type { SampleResponse } from './sample-response.ts';

/**
 * Temperature of the probe. At this temperature, processed log-probabilities differ much from the model's own, unless all likely tokens are
 * equally likely.
 */
const TEMPERATURE = 0.25;

/** Number of tokens that the probe samples. Some of them are almost certain, so their log-probabilities do not show the mode. */
const PROBE_TOKENS = 16;

/** Largest difference, in nats, between two values of the same log-probability: servers compute logits in 16 bits and in varying order. */
const ROUNDING = 0.1;

/** If the largest difference is at least this, the log-probabilities are processed. */
const MIN_DIFFERENCE = 0.3;

/** If a token has at most this log-probability, the temperature changes it by more than {@link ROUNDING}. */
const UNCERTAIN = -0.5;

/**
 * Determines the mode by comparing two log-probabilities of each token. `sampled` has the values that the server returned when it sampled the
 * tokens at a low temperature. `own` has the model's own values, which the server computes for the same tokens as a prompt. Returns `null`
 * when the comparison shows neither mode.
 */
function modeOfSamples(sampled: Float32Array, own: Float32Array): LogprobsMode | null {
  const differences = sampled.map((value, index) => Math.abs(value - (own[index] ?? Number.NaN)));
  if (differences.length === 0 || differences.some(Number.isNaN)) return null;
  const largest = Math.max(...differences);
  if (largest >= MIN_DIFFERENCE) return 'processed';
  return largest <= ROUNDING && own.some((value) => value <= UNCERTAIN) ? 'raw' : null;
}

/**
 * Measures the mode of a server's log-probabilities with two small requests. When the mode cannot be measured, the result has the `configured`
 * mode. Rejects when the server cannot be reached.
 */
export async function probeTinkerLogprobs(
  configured: LogprobsMode,
  prompt: Int32Array,
  sample: (body: string) => Promise<SampleResponse>,
): Promise<ProbedLogprobs> {
  try {
    const { ids, logprobs } = await sample(probeBody([...prompt], TEMPERATURE, PROBE_TOKENS));
    const { promptLogprobs } = await sample(scoringBody([...prompt, ...ids]));
    if (promptLogprobs === null || promptLogprobs.length < ids.length) {
      return believedLogprobs(configured, 'the server does not score the tokens of prompts');
    }
    const own = promptLogprobs.subarray(promptLogprobs.length - ids.length);
    const measured = modeOfSamples(logprobs ?? new Float32Array(0), own);
    if (measured === null) return believedLogprobs(configured, 'the sampled tokens show neither mode');
    return measuredLogprobs(configured, measured);
  } catch (error) {
    if (!hasAnswered(error)) throw error;
    return believedLogprobs(configured, error.message);
  }
}
