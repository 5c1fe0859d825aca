import { z } from 'zod';

/**
 * The models that Polar's clients parse replies with. They correspond to the Pydantic models in NVIDIA-NeMo/ProRL-Agent-Server:
 * `src/polar/rollout/models.py` at 063c948 and `src/polar/trajectory/models.py` at 467f2ab. Like the Pydantic models, they fill in defaults.
 * Models made with `strictObject` refuse unknown keys; all other models ignore them.
 */

const anyObject = z.record(z.string(), z.unknown());

const durations = [
  'register_to_init_queue_ms',
  'rollout_dispatch_ms',
  'rollout_result_wait_ms',
  'rollout_pipeline_e2e_ms',
  'init_ms',
  'ready_queue_ms',
  'run_ms',
  'postrun_queue_ms',
  'postrun_ms',
  'container_start_ms',
  'eval_container_start_ms',
  'runtime_validation_ms',
  'eval_runtime_validation_ms',
  'prepare_ms',
  'eval_prepare_ms',
  'agent_setup_ms',
  'agent_exec_ms',
  'agent_postprocess_ms',
  'build_ms',
  'eval_ms',
  'postrun_exec_ms',
  'runtime_stop_ms',
  'e2e_ms',
  'runtime_exec_ms',
  'mini_swe_command_ms',
] as const;

const counts = [
  'runtime_exec_count',
  'runtime_exec_timeout_count',
  'runtime_exec_failure_count',
  'runtime_exec_exception_count',
  'runtime_exec_cancelled_count',
  'mini_swe_command_count',
  'mini_swe_command_timeout_count',
  'mini_swe_command_failure_count',
] as const;

/** Returns the shape of an object in which every key has the same schema. */
function fieldsOf<const Keys extends readonly string[], Schema extends z.ZodType>(
  keys: Keys,
  schema: Schema,
): Record<Keys[number], Schema> {
  return Object.fromEntries(keys.map((key) => [key, schema])) as Record<Keys[number], Schema>;
}

/** `SessionTiming`, which forbids keys that it does not know. */
const sessionTiming = z.strictObject({
  ...fieldsOf(durations, z.number().default(0)),
  ...fieldsOf(counts, z.int().default(0)),
  runtime_exec_ms_by_category: z.record(z.string(), z.number()).default({}),
  runtime_exec_count_by_category: z.record(z.string(), z.int()).default({}),
  mini_swe_command_ms_by_category: z.record(z.string(), z.number()).default({}),
  mini_swe_command_count_by_category: z.record(z.string(), z.int()).default({}),
});

const trace = z
  .object({
    prompt_ids: z.array(z.int()).default([]),
    response_ids: z.array(z.int()).default([]),
    loss_mask: z.array(z.union([z.literal(0), z.literal(1)])).default([]),
    prompt_messages: z.array(anyObject).default([]),
    response_messages: z.array(anyObject).default([]),
    tools: z.array(anyObject).nullable().default(null),
    finish_reason: z.string().nullable().default(null),
    response_logprobs: z.array(z.number()).nullable().default(null),
    reward: z.number().nullable().default(null),
    metadata: anyObject.default({}),
  })
  .refine(({ loss_mask, response_ids }) => loss_mask.length === 0 || loss_mask.length === response_ids.length, {
    message: 'loss_mask has another length than response_ids',
  })
  .refine(
    ({ response_logprobs, response_ids }) => (response_logprobs?.length ?? response_ids.length) === response_ids.length,
    {
      message: 'response_logprobs has another length than response_ids',
    },
  );

const trajectory = z.object({
  status: z.enum(['COMPLETED', 'TIMEOUT', 'ERROR']),
  metadata: anyObject.default({}),
  traces: z.array(trace).default([]),
  error: z.string().nullable().default(null),
});

const sessionStatus = z.enum([
  'REGISTERED',
  'INITIALIZING',
  'READY',
  'RUNNING',
  'POST_RUN',
  'BUILDING',
  'EVALUATING',
  'COMPLETED',
  'ERROR',
  'TIMEOUT',
]);

const polarSessionResult = z.object({
  session_id: z.string(),
  task_id: z.string(),
  status: sessionStatus,
  trajectory,
  timing: sessionTiming.prefault({}),
  node_id: z.string().nullable().default(null),
  error: z.string().nullable().default(null),
  metadata: anyObject.default({}),
});

/** `TaskResult`, the body of a callback. */
export const polarTaskResult = z.object({
  task_id: z.string(),
  status: z.string(),
  results: z.array(polarSessionResult),
  result_paths: z.array(z.string()).default([]),
});

/** `TaskStatus`, the reply to a poll and to a cancellation. */
export const polarTaskStatus = z.object({
  task_id: z.string(),
  status: z.string(),
  total_sessions: z.int(),
  completed_sessions: z.int(),
  results: z.array(polarSessionResult).default([]),
  result_paths: z.array(z.string()).default([]),
});
export type PolarTaskStatus = z.output<typeof polarTaskStatus>;

/** `GatewayNodeInfo`, the description of one node in Polar's list of nodes. */
export const polarNodeInfo = z.object({
  node_id: z.string(),
  gateway_url: z.string(),
  max_init_workers: z.int(),
  max_run_workers: z.int(),
  max_postrun_workers: z.int(),
  metrics: z.object({
    init_queue_depth: z.int().min(0).default(0),
    init_inflight: z.int().min(0).default(0),
    ready_depth: z.int().min(0).default(0),
    run_inflight: z.int().min(0).default(0),
    postrun_queue_depth: z.int().min(0).default(0),
    postrun_inflight: z.int().min(0).default(0),
  }),
  dispatch_reservations: z.int().min(0).default(0),
  healthy: z.boolean(),
  draining: z.boolean().default(false),
  heartbeat_interval_seconds: z.int(),
  last_heartbeat: z.iso.datetime(),
});

/** The fields of a task that differ between requests. All other fields have Polar's defaults. */
export type PolarTaskFields = {
  readonly task_id: string;
  readonly instruction?: string;
  readonly num_samples?: number;
  readonly command?: string;
  readonly [key: string]: unknown;
};

/**
 * Returns a task in the form in which Polar's `TaskRequest.model_dump()` writes it: with every key of the models, also where the value is
 * the default or null. The backend is `local`, which every machine has, because Polar's backends docker and apptainer need a program.
 */
export function dumpedTask({ command = 'true', ...fields }: PolarTaskFields): Record<string, unknown> {
  return {
    instruction: 'say hello',
    num_samples: 1,
    dispatch_priority: 0,
    early_stop_min_usable_sessions: null,
    timeout_seconds: 600,
    runtime: dumpedRuntime(),
    agent: {
      harness: 'shell',
      import_path: null,
      model_name: null,
      settings: {},
      env: {},
      mcp_servers: [],
      skills_path: null,
      custom_shell: { command, cwd: null, env: null },
    },
    builder: { strategy: 'per_request', config: {} },
    evaluator: { strategy: 'session_completed', config: {}, env: {}, refresh_runtime: false },
    callback_url: null,
    metadata: {},
    ...fields,
  };
}

/**
 * Returns the `runtime` of a task in the form in which Polar's `RuntimeSpec.model_dump()` writes it. It has one prepare action, which runs
 * the command `true`.
 */
function dumpedRuntime(fields: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    backend: 'local',
    image: null,
    prepare: [
      {
        type: 'exec',
        source: null,
        target: null,
        command: 'true',
        cwd: null,
        env: null,
        max_attempts: 1,
        retry_backoff_seconds: 0,
      },
    ],
    eval_prepare: null,
    env: {},
    network: 'none',
    workdir: null,
    direct_exec_init_command: null,
    cpus: null,
    memory_mb: null,
    storage_mb: null,
    gpus: 0,
    allow_internet: true,
    internet_volumes: [],
    import_path: null,
    kwargs: {},
    ...fields,
  };
}
