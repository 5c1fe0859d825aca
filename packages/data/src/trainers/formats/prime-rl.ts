import { z } from 'zod';
import { expertArray } from '../experts.ts';
import {
  Booleans,
  numberOption,
  requiredAdvantage,
  type TrainerRecord,
  type TrainingBatch,
  trainedRows,
} from '../format.ts';
import { fullAdvantages, fullIds, fullLogprobs, fullMask } from '../sequence.ts';

export const primeRlOptions = z.strictObject({
  env_name: z
    .string()
    .min(1)
    .refine((name) => name !== 'all', 'prime-rl reserves the name "all"')
    .default('floe')
    .describe('name under which prime-rl reports these samples'),
  temperature: numberOption
    .pipe(z.number().positive())
    .default(1)
    .describe('temperature with which the policy sampled'),
});

/**
 * Makes prime-rl's `TrainingSample` (`src/prime_rl/transports/rollouts/types.py`, version 0.8.0), one record for each row with trained
 * tokens. All columns have T entries. prime-rl reads the values of the struct as an array in this order.
 */
export function primeRlSamples(batch: TrainingBatch, options: z.infer<typeof primeRlOptions>): TrainerRecord[] {
  return trainedRows(batch).map((place) => {
    const { row } = place;
    const advantage = requiredAdvantage(place, 'prime_rl');
    const mask = fullMask(row);
    return {
      token_ids: fullIds(row),
      mask: new Booleans(mask),
      logprobs: fullLogprobs(row),
      temperatures: new Float32Array(mask.length).fill(options.temperature),
      env_name: options.env_name,
      ref_logprobs: null,
      mm_kwargs: null,
      routed_experts: expertArray(row, { dtype: 'int32', lastRow: true, fillStart: false }),
      mm_token_type_ids: null,
      rl_weights: null,
      ce_weights: null,
      ref_kl_weights: null,
      advantages: fullAdvantages(row, advantage),
    };
  });
}
