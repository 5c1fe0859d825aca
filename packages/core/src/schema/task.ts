import { z } from 'zod';
import { agentSpecSchema } from './agent.ts';
import { taskEngineSchema } from './engine.ts';
import { taskEnvironmentSchema } from './episode.ts';
import { idSchema, metadataSchema, timestampSchema } from './identifiers.ts';
import { environmentSchema, prepareActionSchema, runtimeSpecSchema } from './runtime.ts';
import { samplingSchema } from './sampling.ts';
import { outcomeSchema } from './session.ts';

/** The name of a builder or evaluator and its configuration. */
export const strategySpecSchema = z.strictObject({
  strategy: z.string().min(1),
  config: metadataSchema.default({}),
});
export type StrategySpec = z.infer<typeof strategySpecSchema>;

export const evaluatorSpecSchema = z.strictObject({
  strategy: z.string().min(1),
  config: metadataSchema.default({}),
  env: environmentSchema.default({}),
  refresh_runtime: z
    .boolean()
    .nullable()
    .default(null)
    .describe(
      'whether to evaluate in a fresh runtime that is prepared with `eval_prepare`; null: as the evaluator does by default, which is true for evaluators that run tests',
    ),
});
export type EvaluatorSpec = z.infer<typeof evaluatorSpecSchema>;

/** Maximum number of steps of a task. */
const MAX_STEPS = 32;

/** One of several parts of a task. The agent runs once for each step, all in the same sandbox. */
export const taskStepSchema = z.strictObject({
  name: z
    .string()
    .min(1)
    .max(64)
    .regex(/^[^\p{Cc}]+$/u, 'must not contain control characters')
    .describe('name of the component with the reward of the step'),
  instruction: z.string().describe('instruction of the agent in this step'),
  prepare: z
    .array(prepareActionSchema)
    .default([])
    .describe('prepare actions that run before the agent starts with this step'),
  agent_seconds: z.number().gt(0).optional().describe('time limit of the agent; default: budgets.agent'),
  eval_seconds: z.number().gt(0).optional().describe('time limit of the evaluation; default: budgets.eval'),
  evaluator: evaluatorSpecSchema.describe("computes the reward of the step, in the agent's runtime"),
  min_reward: z
    .union([z.number(), z.record(z.string(), z.number())])
    .optional()
    .describe('reward, or components of it by name, below which the later steps do not run'),
});
export type TaskStep = z.infer<typeof taskStepSchema>;

export const budgetsSchema = z.strictObject({
  init: z.number().gt(0).optional().describe('time limit of INIT in seconds'),
  agent: z.number().gt(0).optional().describe('time limit of the agent in seconds'),
  eval: z
    .number()
    .gt(0)
    .optional()
    .describe('time limit of the evaluation in seconds; separate from timeout_seconds, which is its default'),
  stall: z
    .number()
    .gt(0)
    .optional()
    .describe(
      "seconds without progress (a model call, output, a finished step) after which the attempt is aborted; default: the node's setting",
    ),
});
export type Budgets = z.infer<typeof budgetsSchema>;

/**
 * Maximum size of the archive of artifacts that a task may request, in MiB. It is limited because a result is delivered in one request,
 * archive included.
 */
export const MAX_ARTIFACTS_MB = 256;
/** Maximum number of artifact paths that a task may list. A folder counts as one path, so no task needs more. */
const MAX_ARTIFACT_PATHS = 64;

/** Which files of the sandbox are kept, as one archive, when the agent has ended. */
export const artifactsSpecSchema = z.strictObject({
  collect: z.boolean().default(true),
  max_mb: z
    .number()
    .gt(0)
    .max(MAX_ARTIFACTS_MB)
    .default(16)
    .describe('largest compressed archive in MiB; a larger one is not kept at all'),
  paths: z
    .array(
      z
        .string()
        .min(1)
        .max(4096)
        .refine((path) => !path.includes('\0'), 'must not contain a NUL byte')
        .refine((path) => !path.split('/').includes('..'), 'must not contain ..'),
    )
    .max(MAX_ARTIFACT_PATHS)
    .default([])
    .describe(
      'files and folders of the sandbox in addition to /artifacts and /logs; relative paths are below the workdir',
    ),
});
export type ArtifactsSpec = z.infer<typeof artifactsSpecSchema>;

/**
 * Overrides how sessions with one outcome are used: trained, masked or dropped; whether they count in the baseline; and how often they are
 * retried. Absent fields keep the defaults of docs/outcomes.md.
 */
export const outcomeOverrideSchema = z.strictObject({
  use: z.enum(['train', 'mask', 'drop']).optional(),
  in_baseline: z.boolean().optional(),
  retries: z
    .int()
    .min(0)
    .max(10)
    .optional()
    .describe('maximum number of retries after this outcome; max_attempts bounds all attempts together'),
});
export type OutcomeOverride = z.infer<typeof outcomeOverrideSchema>;

/** A traceparent of version 00, the only version that floe writes. In HTTP headers, later versions are accepted as well. */
const traceparentSchema = z
  .string()
  .regex(
    /^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/,
    'must be 00-<trace id>-<span id>-<flags> in lower-case hexadecimal',
  )
  .refine((text) => !/-0+-/.test(text), 'the trace id and the span id must not be all zeros');

/** Name of the trainer to which tasks that name no trainer belong. */
const DEFAULT_TRAINER = 'default';

/** A task: the unit that a trainer submits. It is sampled `num_samples` times, each time in a session of its own. */
export const taskRequestSchema = z.strictObject({
  task_id: idSchema.optional().describe('id of the task; generated by floe when absent'),
  idempotency_key: z.string().min(1).max(256).optional(),
  instruction: z.string().meta({ examples: ['Write a greeting to hello.txt.'] }),
  num_samples: z.int().min(1).max(100_000).default(1),
  trainer: idSchema
    .default(DEFAULT_TRAINER)
    .describe(
      'name of the trainer that the task belongs to; nodes are shared fairly among trainers, and each can read its own results',
    ),
  dispatch_priority: z
    .int()
    .min(0)
    .max(100)
    .default(0)
    .describe('tasks of the same trainer with a higher priority start first'),
  duration_key: z
    .string()
    .min(1)
    .max(256)
    .nullable()
    .default(null)
    .describe(
      'tasks with the same key, for instance one data set row, are expected to take equally long; default: derived from instruction and harness',
    ),
  deadline_seconds: z
    .number()
    .gt(0)
    .nullable()
    .default(null)
    .describe('seconds from submission, queueing included, after which unfinished sessions are cancelled'),
  early_stop_min_usable_sessions: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('number of usable samples after which the other sessions are cancelled; at most num_samples'),
  refill: z
    .int()
    .min(0)
    .max(100_000)
    .default(0)
    .describe('maximum number of additional samples, each of which replaces one that ended unusable'),
  outcome_policy: z.partialRecord(outcomeSchema, outcomeOverrideSchema).default({}),
  timeout_seconds: z.number().gt(0).default(600),
  timeout_clock: z
    .enum(['active', 'wall'])
    .default('active')
    .describe('whether time in queues counts against the time limit; active: it does not; wall: it does'),
  budgets: budgetsSchema.default({}),
  max_attempts: z
    .int()
    .min(1)
    .max(10)
    .default(3)
    .describe('maximum number of attempts at one session when the infrastructure fails'),
  runtime: runtimeSpecSchema
    .nullable()
    .default(null)
    .describe("sandbox of each session; null for the node's default runtime"),
  agent: agentSpecSchema,
  environment: taskEnvironmentSchema
    .nullable()
    .default(null)
    .describe('environment in which an agent of the harness `floe` acts'),
  sampling: samplingSchema.prefault({}),
  engine: taskEngineSchema.prefault({}).describe('engines that sample the task and how they are prompted'),
  builder: strategySpecSchema.default({ strategy: 'prefix_merging', config: {} }),
  evaluator: evaluatorSpecSchema.nullable().default(null),
  steps: z
    .array(taskStepSchema)
    .max(MAX_STEPS)
    .refine((steps) => new Set(steps.map(({ name }) => name)).size === steps.length, 'must have different names')
    .default([])
    .describe(
      'steps of the task, in whose order the agent runs with the instruction of each instead of that of the task; needs the evaluator `steps`',
    ),
  artifacts: artifactsSpecSchema.prefault({}),
  callback_url: z
    .url({ protocol: /^https?$/ })
    .nullable()
    .default(null),
  callback_results: z
    .enum(['full', 'summary'])
    .default('full')
    .describe('whether the callback carries token data or only paths from which it can be fetched'),
  policy_version: z
    .string()
    .nullable()
    .default(null)
    .describe("the trainer's policy version at submission; floe only records it"),
  traceparent: traceparentSchema
    .nullable()
    .default(null)
    .describe('W3C trace context that spans of this task belong to; default: the header `traceparent` of the request'),
  metadata: metadataSchema.default({}),
});
export type TaskRequest = z.infer<typeof taskRequestSchema>;
export type TaskRequestInput = z.input<typeof taskRequestSchema>;

export const taskStateSchema = z.enum(['running', 'completed', 'cancelled']);
export type TaskState = z.infer<typeof taskStateSchema>;

export const submitReplySchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  session_ids: z.array(idSchema),
  duplicate: z.boolean().describe('whether the task had already been submitted under this id or idempotency key'),
});
export type SubmitReply = z.infer<typeof submitReplySchema>;

/** One task in the reply of `GET /tasks`. */
export const taskSummarySchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  harness: z.string(),
  created_at: timestampSchema,
  total_sessions: z.int(),
  completed_sessions: z.int().describe('sessions in a terminal state, whatever their outcome'),
  mean_reward: z.number().nullable().describe('mean reward of the sessions that have one; null when none has a reward'),
});
export type TaskSummary = z.infer<typeof taskSummarySchema>;
