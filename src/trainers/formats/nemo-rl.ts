import { type PlacedRow, placedRows, type RecordValue, type TrainerRecord, type TrainingBatch } from '../format.ts';
import { maskRuns } from '../sequence.ts';

/**
 * Makes NeMo-RL's rollout result (`nemo_rl/environments/nemo_gym.py`, snapshot 7ea279a), one record for each row. `message_log` alternates
 * between tokens that are not trained (role `user`) and trained tokens (role `assistant`). All messages have `generation_logprobs`, since
 * NeMo-RL flattens the log into one tensor. `loss_multiplier` is 0 for a row of which nothing is trained.
 */
export function nemoRlResults(batch: TrainingBatch): TrainerRecord[] {
  return placedRows(batch).map((place) => {
    const { row, sample, group } = place;
    const log = messageLog(place);
    return {
      message_log: log,
      input_message_log: log.slice(0, 1),
      length: row.promptIds.length,
      loss_multiplier: row.lossMask.includes(1) ? 1 : 0,
      full_result: { reward: row.reward },
      task_name: group.groupId,
      idx: sample.sampleIndex,
      truncated: sample.outcome.startsWith('truncated_'),
    };
  });
}

function messageLog({ row }: PlacedRow): RecordValue[] {
  const messages: { role: string; content: string; token_ids: Int32Array; generation_logprobs: Float32Array }[] = [];
  const context = (ids: Int32Array) =>
    messages.push({ role: 'user', content: '', token_ids: ids, generation_logprobs: new Float32Array(ids.length) });
  const runs = maskRuns(row.lossMask);
  const [first] = runs;
  // A response that begins with context, after a reply that another trace trains, belongs to the first message.
  const start = first !== undefined && !first.trained ? first.end : 0;
  const head = new Int32Array(row.promptIds.length + start);
  head.set(row.promptIds);
  head.set(row.responseIds.subarray(0, start), row.promptIds.length);
  context(head);
  for (const { trained, start: from, end } of start > 0 ? runs.slice(1) : runs) {
    const ids = row.responseIds.subarray(from, end);
    if (!trained) context(ids);
    else {
      const logprobs = row.logprobs.subarray(from, end);
      messages.push({ role: 'assistant', content: '', token_ids: ids, generation_logprobs: logprobs });
    }
  }
  return messages;
}
