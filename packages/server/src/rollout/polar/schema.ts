import { environmentSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { foreignIdSchema } from '../foreign-id.ts';

/**
 * The wire objects of Polar's rollout server. Field names, defaults and ranges come from these files in the repository
 * NVIDIA-NeMo/ProRL-Agent-Server: `src/polar/rollout/models.py` and `src/polar/runtime/models.py` at commit 063c948, and
 * `src/polar/trajectory/models.py` at commit 467f2ab. The agent's objects come from `src/polar/agent/models.py` in the fork
 * jxliu1216/ProRL-Agent-Server at commit c04b814. Requests accept unknown keys, as Polar's models do.
 */

const record = z.record(z.string(), z.unknown());
const environment = environmentSchema.nullish();

/** A command of Polar's `ExecInput`. */
const polarCommandSchema = z.looseObject({
  command: z.string().min(1),
  cwd: z.string().nullish(),
  env: environment,
});

/** One step of Polar's `runtime.prepare`. */
export const polarPrepareSchema = z.looseObject({
  type: z.enum(['upload_file', 'upload_dir', 'exec']),
  source: z.string().nullish(),
  target: z.string().nullish(),
  command: z.string().nullish(),
  cwd: z.string().nullish(),
  env: environment,
  max_attempts: z.int().min(1).max(10).default(1),
  retry_backoff_seconds: z.number().min(0).max(60).default(0),
});
export type PolarPrepare = z.infer<typeof polarPrepareSchema>;

export const polarRuntimeSchema = z.looseObject({
  backend: z.string().default('docker'),
  image: z.string().nullish(),
  prepare: z.array(polarPrepareSchema).default([]),
  eval_prepare: z.array(polarPrepareSchema).nullish(),
  env: environment,
  network: z.string().nullish(),
  workdir: z.string().nullish(),
  direct_exec_init_command: z.string().nullish(),
  cpus: z.number().nullish(),
  memory_mb: z.int().nullish(),
  storage_mb: z.int().nullish(),
  gpus: z.int().default(0),
  allow_internet: z.boolean().default(true),
  internet_volumes: z.array(z.string()).default([]),
  import_path: z.string().nullish(),
  kwargs: record.default({}),
});
export type PolarRuntime = z.infer<typeof polarRuntimeSchema>;

const polarMcpServerSchema = z.looseObject({
  name: z.string(),
  transport: z.enum(['stdio', 'sse', 'streamable-http']),
  command: z.string().nullish(),
  args: z.array(z.string()).default([]),
  url: z.string().nullish(),
});
export type PolarMcpServer = z.infer<typeof polarMcpServerSchema>;

export const polarAgentSchema = z.looseObject({
  harness: z.string().nullish(),
  import_path: z.string().nullish(),
  model_name: z.string().nullish(),
  settings: record.default({}),
  env: environment,
  mcp_servers: z.array(polarMcpServerSchema).default([]),
  skills_path: z.string().nullish(),
  custom_shell: z.union([z.string(), polarCommandSchema]).nullish(),
});
export type PolarAgent = z.infer<typeof polarAgentSchema>;

const polarStrategySchema = z.looseObject({ strategy: z.string().min(1), config: record.default({}) });

export const polarEvaluatorSchema = polarStrategySchema.extend({
  env: environment,
  refresh_runtime: z.boolean().default(false),
});
export type PolarEvaluator = z.infer<typeof polarEvaluatorSchema>;

/** A number, or text with a number, as Python's `float` reads it. */
const polarNumber = z.union([
  z.number(),
  z
    .string()
    .regex(/^\s*\d+(\.\d+)?\s*$/, 'must be a number')
    .transform(Number),
]);

/** A folder of a sandbox. As with Polar, `empty` replaces a path without a name. */
const polarFolder = (empty: string) =>
  z
    .string()
    .transform((path) => path.replace(/\/+$/, '') || empty)
    .optional();

/** Configuration of Polar's evaluator `harbor`: `src/polar/trajectory/evaluator/harbor.py` at 063c948. */
export const polarHarborSchema = z.looseObject({
  tests_dir: z.string().trim().min(1),
  verifier_timeout: polarNumber.pipe(z.number().gt(0)).default(120),
  tests_target: polarFolder('/tests'),
  verifier_dir: polarFolder('/logs/verifier'),
  test_command: z.string().trim().min(1).optional(),
  upload_attempts: polarNumber.pipe(z.number().min(1).lt(11)).optional(),
  upload_retry_backoff_seconds: polarNumber.pipe(z.number().min(0).max(60)).optional(),
});

/** Polar's `TaskRequest`. */
export const polarTaskRequestSchema = z.looseObject({
  task_id: foreignIdSchema,
  instruction: z.string(),
  num_samples: z.int().min(1).optional(),
  num_rollouts: z.int().min(1).optional().describe('the name of num_samples in earlier versions of Polar'),
  dispatch_priority: z.int().min(0).max(100).default(0),
  early_stop_min_usable_sessions: z.int().min(1).nullish(),
  timeout_seconds: z.number().gt(0).default(600),
  runtime: polarRuntimeSchema.nullish(),
  agent: polarAgentSchema,
  builder: polarStrategySchema.prefault({ strategy: 'per_request' }),
  evaluator: polarEvaluatorSchema.nullish(),
  callback_url: z.string().nullish(),
  metadata: record.default({}),
});
export type PolarTaskRequest = z.infer<typeof polarTaskRequestSchema>;

/** The reply to a submitted task. `warnings` is an addition of floe: it names keys of the request that have no effect. */
export const polarSubmitReplySchema = z.object({
  task_id: z.string(),
  status: z.literal('running'),
  warnings: z.array(z.string()),
});

/** Durations of Polar's `SessionTiming` that floe measures, in milliseconds. */
const MEASURED_MS = [
  'rollout_dispatch_ms',
  'rollout_result_wait_ms',
  'rollout_pipeline_e2e_ms',
  'init_ms',
  'ready_queue_ms',
  'run_ms',
  'postrun_queue_ms',
  'postrun_ms',
  'agent_exec_ms',
  'build_ms',
  'eval_ms',
  'e2e_ms',
] as const;

/** Durations and counts of Polar's `SessionTiming` that floe does not measure. They are 0, as in Polar before they are measured. */
const UNMEASURED = [
  'register_to_init_queue_ms',
  'container_start_ms',
  'eval_container_start_ms',
  'runtime_validation_ms',
  'eval_runtime_validation_ms',
  'prepare_ms',
  'eval_prepare_ms',
  'agent_setup_ms',
  'agent_postprocess_ms',
  'postrun_exec_ms',
  'runtime_stop_ms',
  'runtime_exec_ms',
  'runtime_exec_count',
  'runtime_exec_timeout_count',
  'runtime_exec_failure_count',
  'runtime_exec_exception_count',
  'runtime_exec_cancelled_count',
  'mini_swe_command_ms',
  'mini_swe_command_count',
  'mini_swe_command_timeout_count',
  'mini_swe_command_failure_count',
] as const;

const UNMEASURED_BY_CATEGORY = [
  'runtime_exec_ms_by_category',
  'runtime_exec_count_by_category',
  'mini_swe_command_ms_by_category',
  'mini_swe_command_count_by_category',
] as const;

/** Polar's `SessionTiming`. */
export const polarTimingSchema = z.strictObject({
  ...schemasFor(MEASURED_MS, z.number()),
  ...schemasFor(UNMEASURED, z.number().default(0)),
  ...schemasFor(UNMEASURED_BY_CATEGORY, z.record(z.string(), z.number()).default({})),
});
export type PolarTiming = z.infer<typeof polarTimingSchema>;

/** The final states of a Polar session. A cancelled session is in state ERROR. */
export const polarStatusSchema = z.enum(['COMPLETED', 'ERROR', 'TIMEOUT']);
export type PolarStatus = z.infer<typeof polarStatusSchema>;

/** Polar's `SessionResult`. Each trace has the fields of a Polar trace and the fields of a floe trace. */
const polarSessionResultSchema = z.object({
  session_id: z.string(),
  task_id: z.string(),
  status: polarStatusSchema,
  trajectory: z.object({
    status: polarStatusSchema,
    metadata: record,
    traces: z.array(record),
    error: z.string().nullable(),
  }),
  timing: polarTimingSchema,
  node_id: z.string().nullable(),
  error: z.string().nullable(),
  metadata: record,
});

/** Polar's `TaskResult`, the body of a callback. */
const polarTaskResultSchema = z.object({
  task_id: z.string(),
  status: z.string(),
  results: z.array(polarSessionResultSchema),
  result_paths: z.array(z.string()),
});

/** Polar's `TaskStatus`. */
export const polarTaskStatusSchema = polarTaskResultSchema.extend({
  total_sessions: z.int(),
  completed_sessions: z.int(),
});

/** One task in Polar's `GET /tasks`. Times are seconds since 1970. */
export const polarTaskRowSchema = z.object({
  task_id: z.string(),
  status: z.string(),
  harness: z.string().nullable(),
  model: z.string().nullable(),
  num_samples: z.int(),
  completed_sessions: z.int(),
  errored_sessions: z.int(),
  mean_reward: z.number().nullable(),
  mean_traces: z.number().nullable(),
  mean_completions: z.number().nullable(),
  created_at: z.number(),
  updated_at: z.number(),
  source: z.literal('live'),
});
export type PolarTaskRow = z.infer<typeof polarTaskRowSchema>;

/** One session in Polar's `GET /tasks/{id}/sessions`; a session that has not ended has the first three fields. */
export const polarSessionRowSchema = z.object({
  session_id: z.string(),
  task_id: z.string(),
  status: z.string(),
  node_id: z.string().nullish(),
  reward: z.number().nullish(),
  timing: polarTimingSchema.optional(),
  error: z.string().nullish(),
});
export type PolarSessionRow = z.infer<typeof polarSessionRowSchema>;

/** Polar's `GatewayNodeInfo`. */
export const polarNodeSchema = z.object({
  node_id: z.string(),
  gateway_url: z.string(),
  max_init_workers: z.int(),
  max_run_workers: z.int(),
  max_postrun_workers: z.int(),
  metrics: z.object({
    init_queue_depth: z.int(),
    init_inflight: z.int(),
    ready_depth: z.int(),
    run_inflight: z.int(),
    postrun_queue_depth: z.int(),
    postrun_inflight: z.int(),
  }),
  dispatch_reservations: z.int(),
  healthy: z.boolean(),
  draining: z.boolean(),
  heartbeat_interval_seconds: z.int(),
  last_heartbeat: z.string(),
});
export type PolarNode = z.infer<typeof polarNodeSchema>;

export const polarServiceStatusSchema = z.object({
  tasks: z.record(z.string(), z.string()),
  pipeline: z.object({ pending_sessions: z.int() }),
  nodes: z.object({ nodes: z.array(polarNodeSchema) }),
});

/** Returns an object schema's shape in which every key has the same schema. */
function schemasFor<const Keys extends readonly string[], Schema extends z.ZodType>(
  keys: Keys,
  schema: Schema,
): Record<Keys[number], Schema> {
  return Object.fromEntries(keys.map((key) => [key, schema])) as Record<Keys[number], Schema>;
}
