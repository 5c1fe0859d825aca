import type { Outcome } from '@floe-rl/core/schema';
import { z } from 'zod';
import {
  onlyRow,
  type PlacedRow,
  placedSamples,
  requiredReward,
  rewardsOption,
  type TrainerRecord,
  type TrainingBatch,
} from '../format.ts';
import { tokenRewards } from '../replies.ts';

export const skyrlOptions = z.strictObject({
  step_wise: z
    .union([z.stringbool(), z.boolean()], 'must be true or false')
    .default(false)
    .describe('one entry for each trace instead of one for each sample, with is_last_step on the last of a sample'),
  rewards: rewardsOption,
});

/** SkyRL's `stop_reasons` for an outcome; all other outcomes have `stop`. */
const STOP_REASON: Partial<Record<Outcome, string>> = {
  truncated_context: 'length',
  truncated_turns: 'length',
  agent_timeout: 'abort',
  agent_error: 'abort',
};

/**
 * Makes SkyRL's `GeneratorOutput` (`skyrl/train/generators/base.py`, version 0.4.0) for a whole batch as one record of parallel lists. The
 * steps of one sample are adjacent. Rewards are one number for each row. With `rewards=replies` they are one number for each token: the reward
 * of a reply at its last token, and 0 elsewhere. Throws `unsupported` for a sample with several traces unless `step_wise` is set.
 */
export function skyrlOutput(
  batch: TrainingBatch,
  { step_wise: stepWise, rewards }: z.infer<typeof skyrlOptions>,
): TrainerRecord[] {
  const places = placedSamples(batch).flatMap((sample) =>
    stepWise ? sample.rows : [onlyRow(sample, 'skyrl', 'set step_wise=true')],
  );
  return [
    {
      prompt_token_ids: places.map(({ row }) => row.promptIds),
      response_ids: places.map(({ row }) => row.responseIds),
      rewards: places.map((place) => {
        const reward = requiredReward(place, 'skyrl');
        return rewards === 'replies' ? tokenRewards(place.row) : reward;
      }),
      loss_masks: places.map(({ row }) => row.lossMask),
      rollout_logprobs: places.map(({ row }) => row.logprobs),
      stop_reasons: places.map(stopReason),
      trajectory_ids: places.map(({ group, sample }) => ({
        instance_id: group.groupId,
        repetition_id: sample.sampleIndex,
      })),
      is_last_step: stepWise ? places.map(({ sample, rowIndex }) => rowIndex === sample.rows.length - 1) : null,
      rollout_metrics: null,
    },
  ];
}

function stopReason({ row, sample }: PlacedRow): string {
  return STOP_REASON[sample.outcome] ?? row.finishReason ?? 'stop';
}
