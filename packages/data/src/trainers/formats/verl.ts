import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { expertArray } from '../experts.ts';
import {
  imagesOf,
  Json,
  numberOption,
  type PlacedRow,
  placedRows,
  refuseLargePadding,
  requiredReward,
  rewardsOption,
  type TrainerRecord,
  type TrainingBatch,
  withKnownVersions,
} from '../format.ts';
import { type ImageOptions, imagePlaces } from '../image-places.ts';
import { tokenRewards } from '../replies.ts';
import { lastTrained, responseAdvantages, stepsOf } from '../sequence.ts';

/**
 * Makes the fields of verl's `AgentLoopOutput` (`verl/experimental/agent_loop/agent_loop.py`, version 0.9.1) and the key of the row: `uid`
 * of the prompt, `session_id` of the sample, `index` of the row in the sample. `routed_experts` has T rows of int16, zero where the engine
 * reported none. `min_global_steps` and `max_global_steps` are -1 for a row without sampled tokens.
 */
export function verlOutputs(batch: TrainingBatch, options: ImageOptions): TrainerRecord[] {
  return withKnownVersions(placedRows(batch)).map((place) => {
    const { row, sample, group, rowIndex, advantage } = place;
    const images = imagesOf(place);
    const steps = stepsOf(row);
    return {
      uid: group.groupId,
      session_id: sample.sampleIndex,
      index: rowIndex,
      prompt_ids: row.promptIds,
      response_ids: row.responseIds,
      response_mask: row.lossMask,
      response_logprobs: row.logprobs,
      routed_experts: expertArray(row, { dtype: 'int16', lastRow: true, fillStart: true }),
      multi_modal_data: new Json(images.length === 0 ? {} : { image: images }),
      reward_score: row.reward,
      num_turns: row.promptMessages.length + row.responseMessages.length,
      metrics: new Json({}),
      extra_fields: {
        min_global_steps: steps.length === 0 ? -1 : Math.min(...steps),
        max_global_steps: steps.length === 0 ? -1 : Math.max(...steps),
        reward_extra_info: new Json(sample.rewardComponents),
        outcome: sample.outcome,
        floe_trace_id: row.traceId,
        image_positions: new Json(imagePlaces(place, options)),
        ...(advantage === null ? {} : { advantages: responseAdvantages(row, advantage) }),
      },
    };
  });
}

export const verlBatchOptions = z.strictObject({
  prompt_length: numberOption
    .pipe(z.int().min(1))
    .describe('length to which prompts are padded on the left, in tokens'),
  response_length: numberOption
    .pipe(z.int().min(1))
    .describe('length to which responses are padded on the right, in tokens'),
  pad_token_id: numberOption.pipe(z.int().min(0)).describe("id of the tokenizer's padding token"),
  rewards: rewardsOption,
});

/**
 * Makes the columns of verl's `DataProto` for a whole batch as one record: tensors [B, P], [B, R] or [B, P + R] as lists of rows, and the
 * non-tensor columns. Prompts are padded on the left, responses on the right. The reward is on the last trained token. With `rewards=replies`,
 * the reward of each reply is on its last token.
 *
 * Throws `unsupported` for a row that is longer than the given lengths, because verl neither pads nor cuts it.
 */
export function verlBatch(batch: TrainingBatch, options: z.infer<typeof verlBatchOptions>): TrainerRecord[] {
  refuseLargePadding(batch, options.prompt_length + options.response_length, 'verl_batch');
  const places = placedRows(batch);
  const rows = places.map((place) => paddedRow(place, options));
  const column = (name: keyof (typeof rows)[number]) => rows.map((row) => row[name]);
  return [
    {
      prompts: column('prompts'),
      responses: column('responses'),
      response_mask: column('response_mask'),
      input_ids: column('input_ids'),
      attention_mask: column('attention_mask'),
      position_ids: column('position_ids'),
      rollout_log_probs: column('rollout_log_probs'),
      rm_scores: column('rm_scores'),
      uid: places.map(({ group }) => group.groupId),
      __num_turns__: places.map(({ row }) => row.promptMessages.length + row.responseMessages.length),
      floe_trace_id: places.map(({ row }) => row.traceId),
    },
  ];
}

function paddedRow(place: PlacedRow, options: z.infer<typeof verlBatchOptions>) {
  const { row } = place;
  const { prompt_length: promptLength, response_length: responseLength, pad_token_id: padding } = options;
  checkLength(place, 'prompt_length', row.promptIds.length, promptLength);
  checkLength(place, 'response_length', row.responseIds.length, responseLength);
  const left = promptLength - row.promptIds.length;
  const total = promptLength + responseLength;
  const prompts = new Int32Array(promptLength).fill(padding);
  prompts.set(row.promptIds, left);
  const responses = new Int32Array(responseLength).fill(padding);
  responses.set(row.responseIds);
  const inputIds = new Int32Array(total);
  inputIds.set(prompts);
  inputIds.set(responses, promptLength);
  const used = row.promptIds.length + row.responseIds.length;
  const attention = new Uint8Array(total).fill(1, left, left + used);
  // As in verl, a position is the number of attended tokens before it. Padding after the response repeats the last position.
  const positions = new Int32Array(total);
  for (let i = left; i < total; i++) positions[i] = Math.min(i - left, used - 1);
  const mask = new Uint8Array(responseLength);
  mask.set(row.lossMask);
  const logprobs = new Float32Array(responseLength);
  logprobs.set(row.logprobs);
  const scores = new Float32Array(responseLength);
  const reward = requiredReward(place, 'verl_batch');
  const end = lastTrained(row.lossMask);
  if (options.rewards === 'replies') scores.set(tokenRewards(row));
  else scores[end === -1 ? row.responseIds.length - 1 : end] = reward;
  return {
    prompts,
    responses,
    response_mask: mask,
    input_ids: inputIds,
    attention_mask: attention,
    position_ids: positions,
    rollout_log_probs: logprobs,
    rm_scores: scores,
  };
}

function checkLength({ row }: PlacedRow, field: string, length: number, limit: number): void {
  if (length <= limit) return;
  throw new FloeError(
    'unsupported',
    `trace ${row.traceId}: ${length} tokens are more than ${field} ${limit}; raise ${field} or limit the agent's context`,
    { trace_id: row.traceId, field, length, limit },
  );
}
