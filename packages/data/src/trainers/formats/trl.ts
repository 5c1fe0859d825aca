import {
  Json,
  onlyAdvantage,
  onlyRow,
  placedSamples,
  type TrainerRecord,
  type TrainingBatch,
  trainedRows,
  withKnownVersions,
} from '../format.ts';
import { fullIds, fullLogprobs, fullMask, stepsOf } from '../sequence.ts';

/**
 * Makes the `RolloutSample` of TRL's AsyncGRPOTrainer (`trl/experimental/async_grpo`, version 1.16.0), one record for each row with trained
 * tokens and known versions. `model_version` is the oldest version that sampled a trained token, because TRL drops samples by their age.
 */
export function trlSamples(batch: TrainingBatch): TrainerRecord[] {
  return withKnownVersions(trainedRows(batch)).map((place) => {
    const { row, sample, groupNumber } = place;
    return {
      prompt: new Json(row.promptMessages),
      completion: new Json(row.responseMessages),
      input_ids: fullIds(row),
      completion_mask: fullMask(row),
      old_log_probs: fullLogprobs(row),
      advantage: onlyAdvantage(place, 'trl_async'),
      model_version: Math.min(...stepsOf(row)),
      group_id: groupNumber,
      metrics: { reward: sample.reward },
    };
  });
}

/**
 * Makes the reply of a `rollout_func` of TRL's GRPOTrainer (version 1.16.0) for a whole batch as one record of parallel lists, one entry for
 * each sample. Throws `unsupported` for a sample with several traces.
 */
export function trlRollouts(batch: TrainingBatch): TrainerRecord[] {
  const places = placedSamples(batch).map((sample) => onlyRow(sample, 'trl', 'use the format trl_async'));
  return [
    {
      prompt_ids: places.map(({ row }) => row.promptIds),
      completion_ids: places.map(({ row }) => row.responseIds),
      logprobs: places.map(({ row }) => row.logprobs),
      env_mask: places.map(({ row }) => row.lossMask),
      reward: places.map(({ row }) => row.reward),
      session_id: places.map(({ sample }) => sample.sessionId),
    },
  ];
}
