import { z } from 'zod';
import { responseFormatSchema } from './chat.ts';

/**
 * The sampling that the task fixes for the policy. All of it is sent to the engine explicitly: engines otherwise
 * take defaults from the model's generation_config.json, and harnesses send values of their own (a temperature of 0, say).
 */
export const samplingSchema = z.strictObject({
  temperature: z.number().min(0).max(10).default(1),
  top_p: z.number().gt(0).max(1).default(1),
  top_k: z.int().min(0).default(0).describe('0 switches the limit off'),
  min_p: z.number().min(0).max(1).default(0),
  repetition_penalty: z.number().gt(0).max(10).default(1),
  max_tokens: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('upper bound for one reply; null leaves the bound that the harness asks for'),
  seed: z.int().nullable().default(null).describe('seed base; sample i of a task uses seed + i'),
});
export type Sampling = z.infer<typeof samplingSchema>;

/**
 * What a harness asked for in one request; recorded. The numbers are overridden by {@link samplingSchema}; `stop` and
 * `response_format` are passed on, since the harness could not read the reply without them.
 */
export const samplingAskedSchema = z.object({
  temperature: z.number().optional(),
  top_p: z.number().optional(),
  top_k: z.number().optional(),
  max_tokens: z.number().optional(),
  stop: z.array(z.string()).optional(),
  seed: z.number().optional(),
  response_format: responseFormatSchema.optional(),
});
export type SamplingAsked = z.infer<typeof samplingAskedSchema>;
