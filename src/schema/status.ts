import { z } from 'zod';
import { idSchema } from './identifiers.ts';
import { nodeInfoSchema } from './node.ts';
import { sessionResultSchema, sessionStatusSchema, sessionSummarySchema, unusableReasonSchema } from './session.ts';
import { taskStateSchema } from './task.ts';

/** What a trainer can use of a task's samples, and why not the others. */
export const groupReportSchema = z.object({
  requested: z.int().describe('num_samples'),
  usable: z.int().describe('ended, to be trained, with tokens and, where there is an evaluator, a reward'),
  in_baseline: z.int().describe('ended and counting in the reward baseline'),
  unusable: z.partialRecord(unusableReasonSchema, z.int()).describe('ended without use, by reason'),
  open: z.int().describe('not ended yet'),
  refilled: z.int().describe('samples that were added in place of unusable ones'),
  early_stopped: z.boolean(),
});
export type GroupReport = z.infer<typeof groupReportSchema>;

/** `GET /rollout/task/{id}`. Token data comes only with `?results=full`. */
export const taskStatusSchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  total_sessions: z.int(),
  completed_sessions: z.int(),
  group: groupReportSchema,
  results: z.array(sessionSummarySchema).describe('finished sessions; full SessionResults with ?results=full'),
});
export type TaskStatus = z.infer<typeof taskStatusSchema>;

/** The callback body. */
export const taskResultSchema = z.object({
  task_id: idSchema,
  status: taskStateSchema,
  callback_results: z
    .enum(['full', 'summary'])
    .describe('summary: every trajectory is null here, and can be fetched where result_paths say'),
  group: groupReportSchema,
  results: z.array(sessionResultSchema),
  result_paths: z.array(z.string()).describe('where each result can be fetched again'),
});
export type TaskResult = z.infer<typeof taskResultSchema>;

export const resultsPageSchema = z.object({
  results: z.array(sessionResultSchema),
  next_cursor: z.int().describe('pass as `after` to go on'),
});
export type ResultsPage = z.infer<typeof resultsPageSchema>;

/** How long sessions are in each stage on average; null: none has been seen. */
export const stageMeansSchema = z.object({
  samples: z.int(),
  init_ms: z.number().nullable(),
  running_ms: z.number().nullable(),
  postrun_ms: z.number().nullable().describe('evaluation included'),
});
export type StageMeans = z.infer<typeof stageMeansSchema>;

/** `GET /rollout/status`: what runs, and every limit with its current value. */
export const rolloutStatusSchema = z.object({
  tasks: z.object({ running: z.int(), completed: z.int(), cancelled: z.int() }),
  sessions: z.record(sessionStatusSchema, z.int()),
  nodes: z.array(nodeInfoSchema),
  undelivered_callbacks: z.int(),
  limits: z.record(z.string(), z.union([z.number(), z.string(), z.boolean(), z.null()])),
  holding_back: z
    .array(z.object({ limit: z.string(), where: z.string(), count: z.int(), what: z.string() }))
    .describe('limits that work waits for now'),
  trainers: z.array(
    z.object({
      trainer: z.string(),
      queued: z.int(),
      live: z.int(),
      uncollected_results: z.int(),
      uncollected_bytes: z.int(),
      held_back: z.string().nullable().describe('why its sessions are not handed out although nodes ask'),
    }),
  ),
  counters: z.record(z.string(), z.int()).describe('since the server started: what limits and fences have refused'),
  stages: stageMeansSchema.describe('of the sessions that this server took'),
  hints: z
    .array(z.object({ node_id: idSchema, setting: z.string(), value: z.int(), suggested: z.int(), why: z.string() }))
    .describe('pools that are too small for the RUN workers of their node, by the measured means'),
  bottleneck: z
    .object({ name: z.string(), why: z.string(), remedy: z.string() })
    .nullable()
    .describe('what holds the most work back now; null: nothing waits'),
});
export type RolloutStatus = z.infer<typeof rolloutStatusSchema>;

/** One line of `GET /events`. */
export const rolloutEventSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('task.created'), task_id: idSchema, total_sessions: z.int() }),
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
  }),
]);
export type RolloutEvent = z.infer<typeof rolloutEventSchema>;
