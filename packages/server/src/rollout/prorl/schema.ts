import { taskRequestSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { foreignIdSchema } from '../foreign-id.ts';

/**
 * The wire objects of NVIDIA's ProRL Agent server, as in `openhands/nvidia/utils.py` and `scripts/start_server.py` of
 * NVIDIA-NeMo/ProRL-Agent-Server at commit 40c1d8a.
 */

const record = z.record(z.string(), z.unknown());

/** The body of `POST /process`. */
export const prorlProcessSchema = z.looseObject({
  instance: record,
  sampling_params: record.default({}),
  job_id: foreignIdSchema.nullish(),
});
export type ProrlProcess = z.infer<typeof prorlProcessSchema>;

/** The body of `POST /cancel`. */
export const prorlCancelSchema = z.looseObject({ job_id: foreignIdSchema });

const ids = z.array(z.int());

/**
 * A message in the result of a job. The `token_ids` of all messages, one after the other, are the exact prompt and reply of the last model
 * call. For a reply of the policy, `output_ids` has the sampled ids and `input_ids` has the whole prompt of the call that sampled them. Both
 * are `null` for other messages, and for a reply that the agent rewrote.
 */
export const prorlMessageSchema = z.object({
  role: z.string(),
  content: z.string(),
  reasoning_content: z.string().optional(),
  tool_calls: z.array(z.object({ name: z.string(), arguments: z.string() })).optional(),
  token_ids: ids,
  input_ids: ids.nullable(),
  output_ids: ids.nullable(),
  logprobs: z.array(z.number()).nullable(),
});
export type ProrlMessage = z.infer<typeof prorlMessageSchema>;

/** The result of a job, the reply of `POST /process`. `reward`, `outcome` and `warnings` are additions of floe. */
export const prorlResultSchema = z.object({
  instance_id: z.unknown(),
  trajectory_id: z.unknown(),
  git_patch: z.null(),
  success: z.boolean(),
  finish: z.boolean(),
  error: z.string().nullable(),
  messages: z.array(prorlMessageSchema),
  tools: z.array(z.unknown()),
  end_properly: z.boolean(),
  resolved: z.boolean(),
  report: record,
  critical_error: z.enum(['init', 'run', 'eval', 'timeout']).nullable(),
  filter: z.boolean(),
  timing: z.object({
    init: z.number(),
    run: z.number(),
    eval: z.number(),
    others: z.number(),
    timeout: z.number(),
  }),
  reward: z.number().nullable(),
  outcome: z.string(),
  warnings: z.array(z.string()),
});
export type ProrlResult = z.infer<typeof prorlResultSchema>;

/** Fields of a task that a job of ProRL Agent determines itself. */
const OWN_FIELDS = {
  task_id: true,
  idempotency_key: true,
  num_samples: true,
  early_stop_min_usable_sessions: true,
  refill: true,
  trainer: true,
  builder: true,
  callback_url: true,
  callback_results: true,
  traceparent: true,
} as const;

const TEMPLATE_KEYS = Object.keys(taskRequestSchema.omit(OWN_FIELDS).shape);

/**
 * The template of the tasks for one data source: fields of a task, in which `{{instance.path}}` stands for a field of the instance. A text
 * that is only a placeholder becomes the field's value. The fields are checked when a task is made of them.
 */
export const prorlHandlerSchema = record.superRefine((template, check) => {
  for (const key of Object.keys(template)) {
    if (!TEMPLATE_KEYS.includes(key))
      check.addIssue({ code: 'custom', path: [key], message: 'is no field of a template' });
  }
  for (const key of ['instruction', 'agent']) {
    if (!(key in template)) check.addIssue({ code: 'custom', path: [key], message: 'is required' });
  }
});
export type ProrlHandler = z.infer<typeof prorlHandlerSchema>;
