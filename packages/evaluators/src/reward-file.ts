import { asFloeError, KIB, parseAs, parseJson } from '@floe-rl/core';
import { metadataSchema, rewardSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { componentsSchema } from './evaluation-check.ts';
import type { Evaluation } from './evaluator.ts';

/** Maximum size in bytes of the file into which a script writes its reward. Its details are stored in a database row. */
export const MAX_REWARD_FILE_BYTES = 64 * KIB;
const MAX_VALUES = 10_000;

const reportSchema = z.strictObject({
  reward: rewardSchema.nullable(),
  components: componentsSchema.optional(),
  details: metadataSchema.default({}),
  trace_rewards: z.record(z.string(), rewardSchema).optional(),
  step_rewards: z.record(z.string(), rewardSchema).optional(),
});

/**
 * Reads the reward that a script wrote: a JSON number, or an object with `reward` and optionally `components`, `details`, `trace_rewards`
 * and `step_rewards`. Returns the reason as a text when the file has no valid reward.
 */
export function parseRewardFile(file: Buffer): Evaluation | string {
  try {
    const value = parseJson(file, MAX_VALUES);
    const report = parseAs(reportSchema, typeof value === 'number' ? { reward: value } : value, 'the reward file');
    return {
      reward: report.reward,
      details: report.details,
      components: report.components ?? {},
      traceRewards: report.trace_rewards ?? {},
      stepRewards: report.step_rewards ?? {},
    };
  } catch (thrown) {
    return asFloeError(thrown).message;
  }
}
