import { type PlacedRow, requiredAdvantage, type TrainerRecord, type TrainingBatch, trainedRows } from '../format.ts';
import { fullAdvantages, fullIds, fullLogprobs, fullMask, whereTrained } from '../sequence.ts';

/**
 * Makes Tinker's `Datum` (package `tinker`, version 0.38.0), one record for each row with trained tokens. The model's input is the sequence
 * without its last token, and the inputs of the loss are shifted by one: entry i belongs to token i + 1. Advantages are 0 where `mask` is 0.
 * The loss functions `importance_sampling` and `ppo` refuse the entry `mask`, so the adapter removes it before it calls them.
 */
export function tinkerDatums(batch: TrainingBatch): TrainerRecord[] {
  return trainedRows(batch).map(tinkerDatum);
}

function tinkerDatum(place: PlacedRow): TrainerRecord {
  const { row } = place;
  const advantage = requiredAdvantage(place, 'tinker');
  const ids = fullIds(row);
  const mask = fullMask(row).subarray(1);
  const shape = [ids.length - 1];
  return {
    model_input: { chunks: [{ type: 'encoded_text', tokens: ids.subarray(0, -1) }] },
    loss_fn_inputs: {
      target_tokens: { data: ids.subarray(1), dtype: 'int64', shape },
      logprobs: { data: fullLogprobs(row).subarray(1), dtype: 'float32', shape },
      advantages: { data: fullAdvantages(row, advantage).subarray(1), dtype: 'float32', shape },
      mask: { data: whereTrained(mask, 1), dtype: 'float32', shape },
    },
  };
}
