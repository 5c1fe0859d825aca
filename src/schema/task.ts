import { z } from 'zod';
import { agentSpecSchema } from './agent.ts';
import { taskEngineSchema } from './engine.ts';
import { idSchema, metadataSchema, timestampSchema } from './identifiers.ts';
import { environmentSchema, runtimeSpecSchema } from './runtime.ts';
import { samplingSchema } from './sampling.ts';
import { outcomeSchema } from './session.ts';

/** Names a plug-in (builder, evaluator) and its configuration. */
export const strategySpecSchema = z.strictObject({
  strategy: z.string().min(1),
  config: metadataSchema.default({}),
});
export type StrategySpec = z.infer<typeof strategySpecSchema>;

export const evaluatorSpecSchema = z.strictObject({
  strategy: z.string().min(1),
  config: metadataSchema.default({}),
  env: environmentSchema.default({}),
  refresh_runtime: z.boolean().default(false).describe('grade in a fresh runtime, prepared with `eval_prepare`'),
});
export type EvaluatorSpec = z.infer<typeof evaluatorSpecSchema>;

export const budgetsSchema = z.strictObject({
  init: z.number().gt(0).optional().describe('seconds'),
  agent: z.number().gt(0).optional().describe('seconds'),
  eval: z
    .number()
    .gt(0)
    .optional()
    .describe('seconds, beside timeout_seconds; without it evaluation takes what is left'),
  stall: z
    .number()
    .gt(0)
    .optional()
    .describe("seconds without any sign of progress (a model call, output, a finished step); default: the node's"),
});
export type Budgets = z.infer<typeof budgetsSchema>;

/** The largest archive that a task may ask for, in MiB: a result with it must fit into one request. */
export const MAX_ARTIFACTS_MB = 256;
/** More than a task names by hand; a folder is one path. */
const MAX_ARTIFACT_PATHS = 64;

/** What is kept of a sandbox when its agent has ended, as one archive. */
export const artifactsSpecSchema = z.strictObject({
  collect: z.boolean().default(true),
  max_mb: z
    .number()
    .gt(0)
    .max(MAX_ARTIFACTS_MB)
    .default(16)
    .describe('MiB of the archive, compressed; of a larger one nothing is kept'),
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
    .describe('files and folders of the sandbox beside /artifacts and /logs; relative ones are below the workdir'),
});
export type ArtifactsSpec = z.infer<typeof artifactsSpecSchema>;

/** What a task changes of an outcome's policy. What it leaves out stays as docs/outcomes.md says. */
export const outcomeOverrideSchema = z.strictObject({
  use: z.enum(['train', 'mask', 'drop']).optional(),
  in_baseline: z.boolean().optional(),
  retries: z
    .int()
    .min(0)
    .max(10)
    .optional()
    .describe('new attempts at most after this outcome; max_attempts bounds all together'),
});
export type OutcomeOverride = z.infer<typeof outcomeOverrideSchema>;

/** As floe itself writes it. A header may be of a later version. */
const traceparentSchema = z
  .string()
  .regex(
    /^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/,
    'must be 00-<trace id>-<span id>-<flags> in lower-case hexadecimal',
  )
  .refine((text) => !/-0+-/.test(text), 'the trace id and the span id must not be all zeros');

/** Whose work a task is, when it says nothing. */
const DEFAULT_TRAINER = 'default';

/** What a trainer submits: to be sampled `num_samples` times. */
export const taskRequestSchema = z.strictObject({
  task_id: idSchema.optional().describe('chosen by floe when absent'),
  idempotency_key: z.string().min(1).max(256).optional(),
  instruction: z.string(),
  num_samples: z.int().min(1).max(100_000).default(1),
  trainer: idSchema
    .default(DEFAULT_TRAINER)
    .describe('whose task it is: trainers share the nodes fairly, and each can read its own results'),
  dispatch_priority: z.int().min(0).max(100).default(0).describe("higher first among the trainer's tasks"),
  duration_key: z
    .string()
    .min(1)
    .max(256)
    .nullable()
    .default(null)
    .describe('tasks of one key take about as long (a data set row, say); default: made from instruction and harness'),
  deadline_seconds: z
    .number()
    .gt(0)
    .nullable()
    .default(null)
    .describe('from submission, queueing included; what has not ended by then is cancelled'),
  early_stop_min_usable_sessions: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe('with this many usable samples the rest is cancelled; at most num_samples'),
  refill: z
    .int()
    .min(0)
    .max(100_000)
    .default(0)
    .describe('further samples at most, each in place of one that ended unusable'),
  outcome_policy: z.partialRecord(outcomeSchema, outcomeOverrideSchema).default({}),
  timeout_seconds: z.number().gt(0).default(600),
  timeout_clock: z.enum(['active', 'wall']).default('active').describe('active: waiting in queues is free'),
  budgets: budgetsSchema.default({}),
  max_attempts: z.int().min(1).max(10).default(3).describe('tries at one session when the infrastructure fails'),
  runtime: runtimeSpecSchema.nullable().default(null).describe("null: the node's default runtime"),
  agent: agentSpecSchema,
  sampling: samplingSchema.prefault({}),
  engine: taskEngineSchema.prefault({}).describe('which engines sample it, and how they are prompted'),
  builder: strategySpecSchema.default({ strategy: 'prefix_merging', config: {} }),
  evaluator: evaluatorSpecSchema.nullable().default(null),
  artifacts: artifactsSpecSchema.prefault({}),
  callback_url: z
    .url({ protocol: /^https?$/ })
    .nullable()
    .default(null),
  callback_results: z
    .enum(['full', 'summary'])
    .default('full')
    .describe('whether the callback carries token data, or says only where it can be fetched'),
  policy_version: z.string().nullable().default(null).describe('of the trainer at submission; recorded, not used'),
  traceparent: traceparentSchema
    .nullable()
    .default(null)
    .describe('W3C trace context that spans of this task belong to; default: the header of that name'),
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
  duplicate: z.boolean().describe('the task was already known by its id or idempotency key'),
});
export type SubmitReply = z.infer<typeof submitReplySchema>;

/** A row of `GET /tasks`. */
export const taskSummarySchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  harness: z.string(),
  created_at: timestampSchema,
  total_sessions: z.int(),
  completed_sessions: z.int().describe('sessions in a terminal state, whatever their outcome'),
  mean_reward: z.number().nullable().describe('over the sessions with a reward'),
});
export type TaskSummary = z.infer<typeof taskSummarySchema>;
