import { z } from 'zod';
import { batchStreamLoadSchema } from './batch.ts';
import { idSchema } from './identifiers.ts';
import { nodeInfoSchema } from './node.ts';
import { sessionResultSchema, sessionStatusSchema, sessionSummarySchema, unusableReasonSchema } from './session.ts';
import { taskStateSchema } from './task.ts';

/** Counts of a task's samples: how many a trainer can use, and why it cannot use the others. */
export const groupReportSchema = z.object({
  requested: z.int().describe('the `num_samples` of the task'),
  usable: z
    .int()
    .describe('samples that ended with policy `train`, trainable tokens and, when the task has an evaluator, a reward'),
  in_baseline: z.int().describe('samples that ended and count in the reward baseline'),
  unusable: z.partialRecord(unusableReasonSchema, z.int()).describe('samples that ended but are not usable, by reason'),
  open: z.int().describe('samples that have not ended yet'),
  refilled: z.int().describe('samples that were added to replace unusable ones'),
  early_stopped: z.boolean(),
});
export type GroupReport = z.infer<typeof groupReportSchema>;

/** The reply of `GET /rollout/task/{id}`. Results contain token data only with `?results=full`. */
export const taskStatusSchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  total_sessions: z.int(),
  completed_sessions: z.int(),
  group: groupReportSchema,
  results: z
    .array(sessionSummarySchema)
    .describe('finished sessions, as summaries; with ?results=full, as complete SessionResults'),
});
export type TaskStatus = z.infer<typeof taskStatusSchema>;

/** The body of a callback, which the server sends to a task's `callback_url`. */
export const taskResultSchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  callback_results: z
    .enum(['full', 'summary'])
    .describe(
      'whether results contain trajectories; summary: every trajectory is null and can be fetched from result_paths',
    ),
  group: groupReportSchema,
  results: z.array(sessionResultSchema),
  result_paths: z.array(z.string()).describe('API path of each result'),
});
export type TaskResult = z.infer<typeof taskResultSchema>;

export const resultsPageSchema = z.object({
  results: z.array(sessionResultSchema),
  next_cursor: z.int().describe('cursor to pass as `after` to get the next page'),
});
export type ResultsPage = z.infer<typeof resultsPageSchema>;

/** Mean duration of each stage over sessions, in milliseconds; `null` when no session has been measured. */
export const stageMeansSchema = z.object({
  samples: z.int(),
  init_ms: z.number().nullable(),
  running_ms: z.number().nullable(),
  postrun_ms: z.number().nullable().describe('mean time of POSTRUN, including the evaluation'),
});
export type StageMeans = z.infer<typeof stageMeansSchema>;

/** The reply of `GET /rollout/status`: the running work, and every limit with its current value. */
export const rolloutStatusSchema = z.object({
  tasks: z.object({ running: z.int(), completed: z.int(), cancelled: z.int() }),
  sessions: z.record(sessionStatusSchema, z.int()),
  nodes: z.array(nodeInfoSchema),
  undelivered_callbacks: z.int(),
  limits: z.record(z.string(), z.union([z.number(), z.string(), z.boolean(), z.null()])),
  holding_back: z
    .array(z.object({ limit: z.string(), where: z.string(), count: z.int(), what: z.string() }))
    .describe('limits because of which work waits at present'),
  trainers: z.array(
    z.object({
      trainer: z.string(),
      queued: z.int(),
      live: z.int(),
      uncollected_results: z.int(),
      uncollected_bytes: z.int(),
      held_back: z
        .string()
        .nullable()
        .describe("why the trainer's sessions are not leased although nodes request work; null when they are leased"),
    }),
  ),
  batch_streams: z.array(batchStreamLoadSchema).describe('running batch streams, newest first; at most 50'),
  counters: z
    .record(z.string(), z.int())
    .describe('counts of events since the server started, such as refused results, expired leases and retries'),
  stages: stageMeansSchema.describe('mean times of the results that this server process received'),
  hints: z
    .array(z.object({ node_id: idSchema, setting: z.string(), value: z.int(), suggested: z.int(), why: z.string() }))
    .describe(
      'stage pools that are too small to keep the RUN workers of their node busy, according to the measured means',
    ),
  bottleneck: z
    .object({ name: z.string(), why: z.string(), remedy: z.string() })
    .nullable()
    .describe('the limit that delays the most work at present; null when no work waits'),
});
export type RolloutStatus = z.infer<typeof rolloutStatusSchema>;

/** One event of the stream `GET /events`. */
export const rolloutEventSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('task.created'), task_id: idSchema, total_sessions: z.int() }),
  z.object({
    type: z.literal('task.updated').describe('sessions of the task have ended'),
    task_id: idSchema,
    completed_sessions: z.int(),
    total_sessions: z.int(),
  }),
  z.object({
    type: z.literal('task.completed'),
    task_id: idSchema,
    status: taskStateSchema,
    group: groupReportSchema,
  }),
  z.object({
    type: z.literal('session.state_changed'),
    task_id: idSchema,
    session_id: idSchema,
    sample_index: z.int(),
    status: sessionStatusSchema,
    turns: z.int(),
    sampled_tokens: z.int(),
    reward: z.number().nullable(),
    outcome: z.string().nullable(),
    last_reply: z
      .string()
      .optional()
      .describe('beginning of the newest reply of the policy; absent in events that bring no new one'),
  }),
]);
export type RolloutEvent = z.infer<typeof rolloutEventSchema>;
