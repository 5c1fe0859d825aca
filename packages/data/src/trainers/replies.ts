import { parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { maskRuns } from './sequence.ts';
import type { TrainingRow } from './training-row.ts';

/** A reply of the policy in a row. `end` is the response position after its last token. */
export type Reply = { readonly end: number; readonly reward: number };

/** The metadata of a trace about its replies. */
const replyMetadataSchema = z.object({
  /** The trajectory of the trace, when the builder `step` made the trace as one turn of it. */
  trajectory_id: z.string().optional(),
  step_reward: z.number().nullish(),
  step_rewards: z.array(z.number().nullable()).optional(),
  step_ends: z.array(z.int().nullable()).optional(),
});

/**
 * Returns the replies of a row with their rewards, in order. A reply has the reward that the evaluator gave it, or else 0. A last reply
 * without a reward of its own has the reward of the row, or 0 when this is `null`. A row without trained tokens has one reply, which is its
 * whole response.
 */
export function repliesOf(row: TrainingRow): Reply[] {
  const metadata = replyMetadata(row);
  const { step_rewards: rewards = [], step_ends: ends = [], step_reward: stepReward = null } = metadata;
  const given = ends.flatMap((end, at) => (end === null ? [] : [{ end, reward: rewards[at] ?? null }]));
  const runs = given.length > 0 ? given : maskRuns(row.lossMask).filter(({ trained }) => trained);
  const replies = runs.length > 0 ? runs : [{ end: row.responseIds.length }];
  return replies.map((reply, at) => {
    const isLast = at === replies.length - 1;
    const explicit = 'reward' in reply ? reply.reward : null;
    return { end: reply.end, reward: explicit ?? (isLast ? (stepReward ?? row.reward ?? 0) : 0) };
  });
}

/** Returns the trajectory whose turns follow each other. This is the trajectory of the builder `step`, or else the row alone. */
export function trajectoryOf(row: TrainingRow): string {
  return replyMetadata(row).trajectory_id ?? row.traceId;
}

function replyMetadata(row: TrainingRow): z.output<typeof replyMetadataSchema> {
  return parseAs(replyMetadataSchema, row.metadata, `metadata of the trace ${row.traceId}`);
}

/** Returns the rewards of a row's replies, each at the last token of its reply, and 0 elsewhere: [R]. */
export function tokenRewards(row: TrainingRow): Float32Array {
  const rewards = new Float32Array(row.responseIds.length);
  for (const { end, reward } of repliesOf(row)) rewards[end - 1] = reward;
  return rewards;
}
