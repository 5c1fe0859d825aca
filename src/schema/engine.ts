import { z } from 'zod';
import { idSchema } from './identifiers.ts';

export const engineKindSchema = z.enum(['vllm']);
export type EngineKind = z.infer<typeof engineKindSchema>;

/** An inference server that sessions may use. */
export const engineSpecSchema = z.strictObject({
  engine_id: idSchema.optional().describe('default: derived from the URL'),
  kind: engineKindSchema.default('vllm'),
  base_url: z.url({ protocol: /^https?$/ }).describe('without /v1'),
  model: z.string().nullable().default(null).describe("null: the server's first model"),
  logprobs_mode: z
    .enum(['raw', 'processed'])
    .default('processed')
    .describe('what its logprobs mean; vLLM cannot be asked, so it is stated here'),
  stream: z
    .enum(['auto', 'off'])
    .default('auto')
    .describe('auto: replies that a harness wants streamed are relayed as they come; off: they arrive whole'),
});
export type EngineSpec = z.infer<typeof engineSpecSchema>;

export const engineInfoSchema = z.object({
  engine_id: idSchema,
  kind: engineKindSchema,
  base_url: z.string(),
  model: z.string(),
  max_model_len: z.int().nullable(),
  logprobs_mode: z.enum(['raw', 'processed']),
  policy_version: z.string().nullable(),
  healthy: z.boolean(),
  streaming: z.boolean().describe('whether replies are relayed as they come; ends when a stream has lost token ids'),
  inflight: z.int(),
});
export type EngineInfo = z.infer<typeof engineInfoSchema>;
