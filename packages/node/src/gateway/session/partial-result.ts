import { type Completion, encodeRecords } from '@floe-rl/capture';
import type { DeliveredResult } from '@floe-rl/client';
import { asFloeError, FloeError } from '@floe-rl/core';
import { policyOf } from '@floe-rl/core/protocol';
import type { Lease } from '@floe-rl/core/schema';
import type { Attempt } from './attempt.ts';
import { sessionError } from './failure.ts';
import { buildResult, type PostrunInput } from './postrun-stage.ts';

/**
 * Returns the partial result of an attempt that could not finish. It has the completions of the attempt and `reason` as its error. It also
 * has a trajectory, if the task's builder can build one from these completions. A partial result is kept for inspection and never used for
 * training. Never rejects.
 */
export async function partialResultOf(
  attempt: Attempt,
  completions: readonly Completion[],
  parts: Pick<PostrunInput, 'builders' | 'engines' | 'nodeId'>,
  reason: FloeError,
): Promise<DeliveredResult> {
  // An earlier failure of the attempt is replaced, because `reason` is the error that ended the attempt.
  attempt.failure = { outcome: 'infra_error', error: sessionError(reason, attempt.status) };
  const result = await buildResult(attempt, { ...parts, artifacts: null, egress: null, completions });
  if (result.completions !== null || completions.length === 0) return result;
  return { ...result, completions: recordsWithoutGraph(completions) };
}

/** Converts a result that the server refused into a partial result. The refusal becomes its error. */
export function asPartialResult(result: DeliveredResult, refusal: FloeError): DeliveredResult {
  const summary = {
    ...result.summary,
    status: 'ERROR' as const,
    outcome: 'infra_error' as const,
    policy: policyOf('infra_error'),
    reward: null,
    reward_components: {},
    error: sessionError(refusal, 'POSTRUN'),
  };
  return { ...result, summary };
}

/** Returns the error to store in the partial result of an attempt that lost its lease. */
export function leaseLostError({ attempt, session_id }: Lease): FloeError {
  return new FloeError('stale_epoch', `attempt ${attempt} of session ${session_id} lost its lease`);
}

/**
 * Encodes the completions of an attempt for which the builder made no trajectory. Returns `null` when the completions contradict each
 * other.
 */
function recordsWithoutGraph(completions: readonly Completion[]): Buffer | null {
  try {
    return encodeRecords(completions);
  } catch (error) {
    // The completions contradict each other, so the partial result gets no completion records. It is still useful, because its summary
    // contains the number of completions.
    if (asFloeError(error).code === 'internal') return null;
    throw error;
  }
}
