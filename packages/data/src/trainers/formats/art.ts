import { FloeError } from '@floe-rl/core';
import { policyStep } from '@floe-rl/core/protocol';
import {
  Json,
  type PlacedRow,
  type PlacedSample,
  placedSamples,
  type TrainerRecord,
  type TrainingBatch,
} from '../format.ts';
import { fullIds, maskRuns } from '../sequence.ts';
import type { TrainingSample } from '../training-row.ts';

/**
 * Makes the fields of ART's `Trajectory` (`openpipe-art` 0.5.23), one record for each sample. The first trace is its `messages_and_choices`,
 * and every other trace is an additional history. Each run of trained tokens is a choice, with its own ids, the ids of everything before it,
 * and logprobs.
 *
 * ART therefore renders and tokenizes nothing, and does not read the message or the finish reason of a choice. Throws `unsupported` for a
 * sample without a reward.
 */
export function artTrajectories(batch: TrainingBatch): TrainerRecord[] {
  return placedSamples(batch).map((placed) => {
    const { sample, group, rows } = placed;
    const [first = [], ...others] = rows.map(choices);
    return {
      messages_and_choices: first,
      additional_histories: others.map((history) => ({ messages_and_choices: history })),
      reward: requiredSampleReward(sample),
      ...policyVersions(placed),
      metrics: new Json(numbers(sample.rewardComponents)),
      metadata: {
        group_id: group.groupId,
        session_id: sample.sessionId,
        sample_index: sample.sampleIndex,
        outcome: sample.outcome,
      },
    };
  });
}

function choices({ row }: PlacedRow): TrainerRecord[] {
  const ids = fullIds(row);
  const prompt = row.promptIds.length;
  const replies = maskRuns(row.lossMask).filter(({ trained }) => trained);
  return replies.map(({ start, end }) => ({
    finish_reason: 'stop',
    index: 0,
    message: { role: 'assistant', content: '' },
    prompt_token_ids: ids.subarray(0, prompt + start),
    token_ids: row.responseIds.subarray(start, end),
    compact_logprobs: row.logprobs.subarray(start, end),
  }));
}

/** ART computes the advantages of a group from one reward of each trajectory. */
function requiredSampleReward({ reward, sessionId }: TrainingSample): number {
  if (reward !== null) return reward;
  throw new FloeError(
    'unsupported',
    `session ${sessionId} has no reward, which the format art needs; give the task an evaluator`,
    { session_id: sessionId, format: 'art' },
  );
}

/** Returns the oldest and the newest step that sampled a reply; both are `null` when a version is unknown or names no step. */
function policyVersions({ rows }: PlacedSample): TrainerRecord {
  const versions = rows.flatMap(({ row }) => row.versionSpans.map(({ version }) => version));
  const steps = versions.flatMap((version) => policyStep(version ?? '') ?? []);
  const isKnown = steps.length > 0 && steps.length === versions.length;
  return {
    initial_policy_version: isKnown ? steps.reduce((a, b) => Math.min(a, b)) : null,
    final_policy_version: isKnown ? steps.reduce((a, b) => Math.max(a, b)) : null,
  };
}

/** Leaves out components without a value, because ART's metrics are numbers. */
function numbers(components: Readonly<Record<string, number | null>>): Record<string, number> {
  return Object.fromEntries(
    Object.entries(components).flatMap(([name, value]) => (value === null ? [] : [[name, value]])),
  );
}
