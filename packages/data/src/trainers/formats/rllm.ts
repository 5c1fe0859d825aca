import { expertRows, reportedExperts } from '../experts.ts';
import {
  Json,
  type PlacedRow,
  type PlacedSample,
  placedSamples,
  type RecordValue,
  requiredReward,
  type TrainerRecord,
  type TrainingBatch,
} from '../format.ts';
import { fullIds, maskRuns, stepOf } from '../sequence.ts';
import type { TrainingRow } from '../training-row.ts';

/**
 * Makes rLLM's `Episode` (snapshot 9beb6e0, version 0.3.0.pre) for each sample. Each trace is a trajectory. Each run of trained tokens is a
 * step whose prompt is everything before it, so that a step has one logprob for each of its response ids. The version of a step is the version
 * of its first token, as an integer; `null` when it is unknown.
 *
 * The last step of a trace has the experts of all tokens up to its end, as the shape and the data that rLLM's verl backend reads. It has none
 * when the engine left some out at the start. The other steps have none.
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

function trajectories({ rows }: PlacedSample): RecordValue[] {
  return rows.map((place) => {
    const reward = requiredReward(place, 'rllm');
    const { row } = place;
    return { name: String(row.metadata.thread ?? 'main'), uid: row.traceId, reward, steps: steps(place, reward) };
  });
}

function steps({ row, advantage }: PlacedRow, reward: number): RecordValue[] {
  const ids = fullIds(row);
  const prompt = row.promptIds.length;
  const replies = maskRuns(row.lossMask).filter(({ trained }) => trained);
  const last = replies.length - 1;
  return replies.map(({ start, end }, index) => ({
    prompt_ids: ids.subarray(0, prompt + start),
    response_ids: row.responseIds.subarray(start, end),
    logprobs: row.logprobs.subarray(start, end),
    routing_matrices: index === last ? routingMatrices(row, prompt + end) : null,
    reward: index === last ? reward : 0,
    advantage: advantage === null || typeof advantage === 'number' ? advantage : (advantage[start] ?? 0),
    weight_version: stepAt(row, start),
    done: index === last,
  }));
}

/**
 * Returns the experts of the first `length` tokens. A token without experts has a row of zeros; only the last token of a trace has no experts.
 */
function routingMatrices(row: TrainingRow, length: number): readonly [string, string] | null {
  const experts = reportedExperts(row);
  if (experts === null || experts.start > 0) return null;
  const { dtype, shape, data } = expertRows(experts, 0, length, 0);
  return [JSON.stringify({ shape: shape.slice(1), dtype }), data];
}

function stepAt(row: TrainingRow, position: number): number | null {
  const version = row.versionSpans.find(({ start, end }) => start <= position && position < end)?.version ?? null;
  return version === null ? null : stepOf(version, row);
}
