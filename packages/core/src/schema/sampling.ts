import { z } from 'zod';
import { responseFormatSchema } from './chat.ts';

/**
 * The sampling parameters that the task sets for the policy. All of them are sent to the engine explicitly. Otherwise engines would take
 * defaults from the model's generation_config.json, and values of the harness, such as a temperature of 0, would apply.
 */
export const samplingSchema = z.strictObject({
  temperature: z.number().min(0).max(10).default(1),
  top_p: z.number().gt(0).max(1).default(1),
  top_k: z.int().min(0).default(0).describe('number of most probable tokens from which to sample; 0 for all tokens'),
  min_p: z.number().min(0).max(1).default(0),
  repetition_penalty: z.number().gt(0).max(10).default(1),
  max_tokens: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('longest reply in tokens; null keeps the limit that the harness requests'),
  seed: z.int().nullable().default(null).describe('base seed; sample i of a task uses seed + i'),
});
export type Sampling = z.infer<typeof samplingSchema>;

/**
 * The sampling parameters that a harness sent with one request, as recorded. Numbers that the task sets (see {@link samplingSchema}) replace
 * the harness's numbers. `stop` and `response_format` are forwarded to the engine, because the harness could not parse the reply without them.
 */
export const requestedSamplingSchema = z.object({
  temperature: z.number().optional(),
  top_p: z.number().optional(),
  top_k: z.number().optional(),
  max_tokens: z.number().optional(),
  stop: z.array(z.string()).optional(),
  seed: z.number().optional(),
  response_format: responseFormatSchema.optional(),
});
export type RequestedSampling = z.infer<typeof requestedSamplingSchema>;
