import { type ExpertArray, expertRows, reportedExperts } from '../experts.ts';
import { type PlacedRow, placedRows, requiredReward, type TrainerRecord, type TrainingBatch } from '../format.ts';
import { maskRuns, responseAdvantages } from '../sequence.ts';

/**
 * Makes NeMo-RL's rollout result (`nemo_rl/environments/nemo_gym.py`, snapshot 7ea279a), one record for each row. `message_log` alternates
 * between tokens that are not trained (role `user`) and trained tokens (role `assistant`). All messages have `generation_logprobs`, since
 * NeMo-RL flattens the log into one tensor. `loss_multiplier` is 0 for a row without trained tokens.
 *
 * Where the engine reported experts, all messages have `routed_experts`. Tokens without experts, such as the last token, have -1: NeMo-RL's
 * own router then chooses. `routed_experts` is `null` in a row without experts.
 */
export function nemoRlResults(batch: TrainingBatch): TrainerRecord[] {
  return placedRows(batch).map((place) => {
    const { row, sample, group } = place;
    const log = messageLog(place);
    return {
      message_log: log,
      input_message_log: log.slice(0, 1),
      length: log[0]?.token_ids.length ?? 0,
      loss_multiplier: row.lossMask.includes(1) ? 1 : 0,
      full_result: { reward: requiredReward(place, 'nemo_rl') },
      task_name: group.groupId,
      idx: sample.sampleIndex,
      truncated: sample.outcome.startsWith('truncated_'),
    };
  });
}

type Message = {
  readonly role: string;
  readonly content: string;
  readonly token_ids: Int32Array;
  readonly generation_logprobs: Float32Array;
  readonly advantages?: Float32Array;
  readonly routed_experts: ExpertArray | null;
};

/** NeMo-RL's value for an unknown expert. */
const MISSING_EXPERT = -1;

function messageLog({ row, advantage }: PlacedRow): Message[] {
  const messages: Message[] = [];
  const advantages = advantage === null ? null : responseAdvantages(row, advantage);
  const experts = reportedExperts(row);
  let position = 0;
  const expertsOf = (ids: Int32Array) => {
    const start = position;
    position += ids.length;
    return experts === null ? null : expertRows(experts, start, position, MISSING_EXPERT);
  };
  const context = (ids: Int32Array) =>
    messages.push({
      role: 'user',
      content: '',
      token_ids: ids,
      generation_logprobs: new Float32Array(ids.length),
      ...(advantages === null ? {} : { advantages: new Float32Array(ids.length) }),
      routed_experts: expertsOf(ids),
    });
  const runs = maskRuns(row.lossMask);
  const [first] = runs;
  // A response begins with context when another trace trains the reply before it. This context belongs to the first message.
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
      messages.push({
        role: 'assistant',
        content: '',
        token_ids: ids,
        generation_logprobs: logprobs,
        ...(advantages === null ? {} : { advantages: advantages.subarray(from, end) }),
        routed_experts: expertsOf(ids),
      });
    }
  }
  return messages;
}
