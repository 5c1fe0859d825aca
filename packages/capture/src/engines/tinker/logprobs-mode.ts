import type { LogprobsMode } from '@floe-rl/core/schema';
import { hasAnswered } from '../engine-server.ts';
import { believedLogprobs, measuredLogprobs, type ProbedLogprobs } from '../logprobs-probe.ts';
import { probeBody, scoringBody } from './request.ts';
import type { SampleResponse } from './sample-response.ts';

/**
 * Temperature of the probe. Processed log-probabilities at it differ much from the model's own, unless all likely tokens are equally
 * likely.
 */
const TEMPERATURE = 0.25;

/** Number of tokens that the probe samples. Some of them are almost certain, and show nothing. */
const PROBE_TOKENS = 16;

/** Largest difference, in nats, between two values of the same log-probability: servers compute logits in 16 bits and in varying order. */
const ROUNDING = 0.1;

/** Minimum of the largest difference that shows processed log-probabilities. */
const MIN_DIFFERENCE = 0.3;

/** A token at or below this log-probability would have a value that differs by more than {@link ROUNDING} after the temperature. */
const UNCERTAIN = -0.5;

/**
 * Determines the mode from the log-probabilities of tokens that were sampled at a low temperature, and from those that the server computes
 * for the same tokens as a prompt, which are the model's own. `null` when they show neither mode.
 */
function modeOfSamples(sampled: Float32Array, own: Float32Array): LogprobsMode | null {
  const differences = sampled.map((value, index) => Math.abs(value - (own[index] ?? Number.NaN)));
  if (differences.length === 0 || differences.some(Number.isNaN)) return null;
  const largest = Math.max(...differences);
  if (largest >= MIN_DIFFERENCE) return 'processed';
  return largest <= ROUNDING && own.some((value) => value <= UNCERTAIN) ? 'raw' : null;
}

/**
 * Measures the mode of a server's log-probabilities with two small requests. A mode that cannot be measured is the `configured` one.
 * Rejects when the server cannot be reached.
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
