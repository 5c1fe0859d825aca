import {
  Json,
  type PlacedSample,
  placedSamples,
  type RecordValue,
  type TrainerRecord,
  type TrainingBatch,
} from '../format.ts';
import { fullIds, maskRuns } from '../sequence.ts';
import type { TrainingRow } from '../training-row.ts';

/**
 * Makes rLLM's `Episode` (snapshot 9beb6e0, version 0.3.0.pre) for each sample. Each trace is a trajectory, and each run of trained tokens is
 * a step whose prompt is everything before it, so that a step has one logprob for each of its response ids.
 */
export function rllmEpisodes(batch: TrainingBatch): TrainerRecord[] {
  return placedSamples(batch).map((placed) => {
    const { sample, group } = placed;
    return {
      id: `${group.groupId}:${sample.sampleIndex}`,
      task: { id: group.groupId },
      is_correct: (sample.reward ?? 0) > 0,
      metrics: new Json(sample.rewardComponents),
      trajectories: trajectories(placed),
    };
  });
}

function trajectories({ rows, advantage }: PlacedSample): RecordValue[] {
  return rows.map((place) => {
    const { row } = place;
    return {
      name: String(row.metadata.thread ?? 'main'),
      uid: row.traceId,
      reward: row.reward,
      steps: steps(row, advantage),
    };
  });
}

function steps(row: TrainingRow, advantage: number | null): RecordValue[] {
  const ids = fullIds(row);
  const prompt = row.promptIds.length;
  const replies = maskRuns(row.lossMask).filter(({ trained }) => trained);
  return replies.map(({ start, end }, index) => ({
    prompt_ids: ids.subarray(0, prompt + start),
    response_ids: row.responseIds.subarray(start, end),
    logprobs: row.logprobs.subarray(start, end),
    reward: index === replies.length - 1 ? row.reward : 0,
    advantage,
    weight_version: row.versionSpans.find((span) => span.start <= start && start < span.end)?.version ?? null,
    done: index === replies.length - 1,
  }));
}
