import type { DeliveredResult } from '../../client/node-api.ts';
import { asFloeError, type FloeError } from '../../core/errors.ts';
import { policyOf } from '../../core/outcomes.ts';
import type { Completion } from '../../tokens/completion.ts';
import { encodeRecords } from '../../tokens/records.ts';
import type { Attempt } from './attempt.ts';
import { describe } from './failure.ts';
import { build, type PostrunInput } from './postrun-stage.ts';

/**
 * What is left of an attempt that was cut off, as evidence: its completions, the trajectory that the task's builder makes of
 * them where it can, and `cut` as the reason. Never trained. Never rejects.
 */
export async function remainsOf(
  attempt: Attempt,
  completions: readonly Completion[],
  parts: Pick<PostrunInput, 'builders' | 'engines' | 'nodeId'>,
  cut: FloeError,
): Promise<DeliveredResult> {
  // Whatever went wrong before, this is why it ended here.
  attempt.failure = { outcome: 'infra_error', error: describe(cut, attempt.status) };
  const none = { runtime: null, freshRuntime: null, evaluator: null, artifacts: null };
  const built = await build(attempt, { reward: null, details: {} }, { ...parts, ...none, completions });
  if (built.completions !== null || completions.length === 0) return built;
  return { ...built, completions: recordsOf(completions) };
}

/** Without a graph that the builder could use there may still be records. */
function recordsOf(completions: readonly Completion[]): Buffer | null {
  try {
    return encodeRecords(completions);
  } catch (error) {
    // What does not make a graph is not theirs to show; the summary tells how many there were.
    if (asFloeError(error).code === 'internal') return null;
    throw error;
  }
}

/** A result that came too late, as the remains of its attempt. */
export function asRemains(result: DeliveredResult, refusal: FloeError): DeliveredResult {
  const summary = {
    ...result.summary,
    status: 'ERROR' as const,
    outcome: 'infra_error' as const,
    policy: policyOf('infra_error'),
    reward: null,
    error: describe(refusal, 'POSTRUN'),
  };
  return { ...result, summary };
}
