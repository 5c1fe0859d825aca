import { Json, onlyRow, placedSamples, responseText, type TrainerRecord, type TrainingBatch } from '../format.ts';
import { fullIds, fullLogprobs, maskRuns } from '../sequence.ts';

/**
 * Makes the dict that `AgentExecutorBase.execute` of OpenRLHF (version 0.11.2) returns, one record for each sample. `action_ranges` are the
 * positions of the trained tokens in `observation_tokens`. Throws `unsupported` for a sample with several traces.
 */
export function openrlhfExecutions(batch: TrainingBatch): TrainerRecord[] {
  return placedSamples(batch).map((placed) => {
    const place = onlyRow(placed, 'openrlhf', 'use a harness or builder that makes one trace for each session');
    const { row, sample, group } = place;
    const offset = row.promptIds.length;
    return {
      prompt: new Json(row.promptMessages),
      label: group.groupId,
      output: responseText(row),
      reward: row.reward,
      scores: row.reward,
      observation_tokens: fullIds(row),
      action_ranges: maskRuns(row.lossMask).flatMap(({ trained, start, end }) =>
        trained ? [[offset + start, offset + end]] : [],
      ),
      rollout_log_probs: fullLogprobs(row),
      truncated: sample.outcome.startsWith('truncated_'),
      extra_logs: new Json(sample.rewardComponents),
    };
  });
}
