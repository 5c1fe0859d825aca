import { z } from 'zod';

/**
 * The version of Harbor's Agent Trajectory Interchange Format (ATIF) in which sessions are written. Documents up to version 1.8 are read, as
 * in `harbor/models/trajectories` of Harbor 0.26.0.
 */
export const ATIF_VERSION = 'ATIF-v1.7';

const imageSourceSchema = z.object({ media_type: z.string().nullish(), path: z.string() });

const partSchema = z.object({
  type: z.string(),
  text: z.string().nullish(),
  source: imageSourceSchema.nullish(),
});

const contentSchema = z.union([z.string(), z.array(partSchema)]);
export type AtifContent = z.output<typeof contentSchema>;

const callSchema = z.object({
  tool_call_id: z.string(),
  function_name: z.string(),
  arguments: z.record(z.string(), z.unknown()),
  extra: z
    .object({
      sampled_arguments: z
        .string()
        .nullish()
        .describe('the arguments that the policy sampled, if they are no JSON object'),
    })
    .nullish(),
});

const resultSchema = z.object({ source_call_id: z.string().nullish(), content: contentSchema.nullish() });
export type AtifResult = z.output<typeof resultSchema>;

const stepMetricsSchema = z.object({
  prompt_tokens: z.int().nullish(),
  completion_tokens: z.int().nullish(),
  cached_tokens: z.int().nullish(),
  prompt_token_ids: z.array(z.int()).nullish(),
  completion_token_ids: z.array(z.int()).nullish(),
  logprobs: z.array(z.number()).nullish(),
});

const stepSchema = z.object({
  step_id: z.int().nullish(),
  timestamp: z.string().nullish(),
  source: z.enum(['system', 'user', 'agent']),
  model_name: z.string().nullish(),
  message: contentSchema,
  reasoning_content: z.string().nullish(),
  tool_calls: z.array(callSchema).nullish(),
  observation: z.object({ results: z.array(resultSchema) }).nullish(),
  metrics: stepMetricsSchema.nullish(),
  is_copied_context: z.boolean().nullish(),
  llm_call_count: z.int().nullish(),
});
export type AtifStep = z.output<typeof stepSchema>;

/** A document of ATIF: one trajectory of an agent. Fields that floe neither reads nor writes are left out. */
export const atifDocumentSchema = z.object({
  schema_version: z.string(),
  session_id: z.string().nullish(),
  trajectory_id: z.string().nullish(),
  agent: z.object({
    name: z.string(),
    version: z.string().nullish(),
    model_name: z.string().nullish(),
    tool_definitions: z.array(z.unknown()).nullish(),
  }),
  steps: z.array(stepSchema),
  final_metrics: z.object({ total_completion_tokens: z.int().nullish(), total_steps: z.int().nullish() }).nullish(),
  extra: z.record(z.string(), z.unknown()).nullish(),
  continued_trajectory_ref: z.string().nullish(),
  // Each element is a document of its own. It is checked where it is read, so that an error names its place.
  subagent_trajectories: z.array(z.unknown()).nullish(),
});
export type AtifDocument = z.output<typeof atifDocumentSchema>;
