import { FloeError, parseAs } from '@floe-rl/core';
import { metadataSchema, rewardSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { EvaluatedSession, Evaluation } from './evaluator.ts';

/** Maximum number of components of a reward. A session's summary is stored in a database row, so the number is limited. */
const MAX_COMPONENTS = 256;
const MAX_COMPONENT_CHARS = 256;

export const componentsSchema = z
  .record(z.string().min(1).max(MAX_COMPONENT_CHARS), rewardSchema.nullable())
  .refine((components) => Object.keys(components).length <= MAX_COMPONENTS, `has more than ${MAX_COMPONENTS} names`);

const evaluationSchema = z.object({
  reward: rewardSchema.nullable(),
  details: metadataSchema,
  components: componentsSchema.default({}),
  traceRewards: z.record(z.string(), rewardSchema).default({}),
  stepRewards: z.record(z.string(), rewardSchema).default({}),
});

/** An evaluation with a value for each optional field. */
export type CheckedEvaluation = Required<Evaluation>;

/** The evaluation of a session that was not evaluated, or whose evaluation failed. */
export const NO_EVALUATION: CheckedEvaluation = {
  reward: null,
  details: {},
  components: {},
  traceRewards: {},
  stepRewards: {},
};

/**
 * Checks what an evaluator returned. All rewards must be finite, and rewards of traces and replies must name traces and replies of the
 * session. When the evaluation has no reward for the session, the rewards of traces and replies are dropped. Throws `evaluator_failed` with a
 * message that names the invalid field.
 */
export function checkedEvaluation(name: string, evaluation: unknown, { traces }: EvaluatedSession): CheckedEvaluation {
  const checked = parsed(name, evaluation);
  const { traceRewards, stepRewards } = checked;
  refuseUnknown(name, 'traceRewards', traceRewards, new Set(traces.map(({ traceId }) => traceId)));
  const completionIds = traces.flatMap((trace) => trace.completionIds);
  refuseUnknown(name, 'stepRewards', stepRewards, new Set(completionIds));
  return checked.reward === null ? { ...checked, traceRewards: {}, stepRewards: {} } : checked;
}

function parsed(name: string, evaluation: unknown): CheckedEvaluation {
  try {
    return parseAs(evaluationSchema, evaluation, `the evaluation of ${name}`);
  } catch (cause) {
    const { message, details } = cause as FloeError;
    throw new FloeError('evaluator_failed', message, details, cause);
  }
}

function refuseUnknown(
  name: string,
  field: string,
  rewards: Readonly<Record<string, number>>,
  known: ReadonlySet<string>,
): void {
  const unknown = Object.keys(rewards).find((id) => !known.has(id));
  if (unknown === undefined) return;
  throw new FloeError(
    'evaluator_failed',
    `the evaluation of ${name}: ${field}: no trace of the session has ${unknown}`,
    {
      path: field,
      id: unknown,
    },
  );
}
