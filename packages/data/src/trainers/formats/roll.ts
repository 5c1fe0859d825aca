import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import {
  Booleans,
  numberOption,
  type PlacedRow,
  refuseLargePadding,
  requiredReward,
  type TrainerRecord,
  type TrainingBatch,
  trainedRows,
} from '../format.ts';
import { fullAdvantages, fullIds, fullLogprobs, fullMask } from '../sequence.ts';

export const rollOptions = z.strictObject({
  sequence_length: numberOption
    .pipe(z.int().min(2))
    .describe('length to which rows are padded on the right, in tokens'),
  pad_token_id: numberOption.pipe(z.int().min(0)).describe("id of the tokenizer's padding token"),
  tag: z.string().min(1).default('floe').describe('tag of the environment'),
});

/**
 * Makes a row of ROLL's `DataProto` (`roll/pipeline/agentic/env_manager/traj_env_manager.py`, snapshot 8eb27cc2) for each row with trained
 * tokens. Columns are padded to S = `sequence_length`; `infer_logprobs` has S - 1 entries, entry i belongs to token i + 1. The reward is on
 * the last token before the padding. Throws `unsupported` for a longer row.
 */
export function rollRows(batch: TrainingBatch, options: z.infer<typeof rollOptions>): TrainerRecord[] {
  refuseLargePadding(batch, options.sequence_length, 'roll');
  return trainedRows(batch).map((place) => rollRow(place, options));
}

function rollRow(place: PlacedRow, options: z.infer<typeof rollOptions>): TrainerRecord {
  const { sequence_length: length, pad_token_id: padding, tag } = options;
  const { row, sample, group, groupNumber, rowIndex, advantage } = place;
  const ids = fullIds(row);
  const used = ids.length;
  if (used > length) {
    throw new FloeError(
      'unsupported',
      `trace ${row.traceId}: ${used} tokens are more than sequence_length ${length}; raise it or limit the agent's context`,
      { trace_id: row.traceId, field: 'sequence_length', length: used, limit: length },
    );
  }
  const inputIds = new Int32Array(length).fill(padding);
  inputIds.set(ids);
  const responseMask = new Uint8Array(length);
  responseMask.set(fullMask(row));
  const scores = new Float32Array(length);
  const reward = requiredReward(place, 'roll');
  scores[used - 1] = reward;
  const positions = new Int32Array(length);
  for (let i = 0; i < used; i++) positions[i] = i;
  const logprobs = new Float32Array(length);
  logprobs.set(fullLogprobs(row));
  const advantages = new Float32Array(advantage === null ? 0 : length);
  if (advantage !== null) advantages.set(fullAdvantages(row, advantage));
  return {
    input_ids: inputIds,
    attention_mask: new Uint8Array(length).fill(1, 0, used),
    position_ids: positions,
    response_mask: new Booleans(responseMask),
    prompt_mask: new Booleans(new Uint8Array(length).fill(1, 0, responseMask.indexOf(1))),
    scores,
    infer_logprobs: logprobs.subarray(1),
    ...(advantage === null ? {} : { advantages: advantages.subarray(1) }),
    env_ids: sample.sampleIndex,
    group_ids: groupNumber,
    traj_group_id: group.groupId,
    traj_id: sample.sessionId,
    tags: tag,
    step: rowIndex,
    step_scores: [reward],
    episode_scores: sample.reward ?? reward,
  };
}
