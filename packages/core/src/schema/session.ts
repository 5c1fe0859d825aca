import { z } from 'zod';
import { callSumsSchema } from './call-sums.ts';
import { episodeReportSchema } from './episode.ts';
import { countSchema, idSchema, metadataSchema, timestampSchema } from './identifiers.ts';
import { isolationSchema } from './runtime.ts';
import { sessionCostSchema } from './session-cost.ts';
import { auditSchema, trajectorySchema } from './trajectory.ts';

export const sessionStatusSchema = z.enum([
  'QUEUED',
  'LEASED',
  'INIT',
  'READY',
  'RUNNING',
  'POSTRUN',
  'COMPLETED',
  'ERROR',
  'TIMEOUT',
  'CANCELLED',
]);
export type SessionStatus = z.infer<typeof sessionStatusSchema>;

export const terminalStatusSchema = z.enum(['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED']);
export type TerminalStatus = z.infer<typeof terminalStatusSchema>;

export const outcomeSchema = z.enum([
  'completed',
  'truncated_context',
  'truncated_turns',
  'agent_timeout',
  'agent_error',
  'env_error',
  'verifier_error',
  'engine_error',
  'infra_error',
  'cancelled',
  'no_completions',
]);
export type Outcome = z.infer<typeof outcomeSchema>;

export const outcomePolicySchema = z.object({
  use: z.enum(['train', 'mask', 'drop']),
  in_baseline: z.boolean().describe("whether the sample counts in the group's reward baseline"),
});
export type OutcomePolicy = z.infer<typeof outcomePolicySchema>;

/**
 * Durations of a session in milliseconds; `null` for a stage that the session did not reach. Time in queues and in the stage READY does not
 * count against the time budget.
 */
export const sessionTimingSchema = z.object({
  queued_ms: z.number().nullable(),
  init_ms: z.number().nullable(),
  ready_ms: z.number().nullable(),
  running_ms: z.number().nullable(),
  postrun_queue_ms: z.number().nullable(),
  build_ms: z.number().nullable(),
  eval_ms: z.number().nullable(),
  postrun_ms: z.number().nullable(),
  total_ms: z.number().describe('time from the lease to the result'),
});
export type SessionTiming = z.infer<typeof sessionTimingSchema>;

export const sessionErrorSchema = z.object({
  code: z.string(),
  message: z.string(),
  stage: z.string().nullable(),
  details: metadataSchema.default({}),
});
export type SessionError = z.infer<typeof sessionErrorSchema>;

/** How the harness process ended, for the diagnosis of failed runs. */
export const agentReportSchema = z.object({
  exit_code: z.int().nullable(),
  turns: countSchema.describe('number of model calls that received a reply'),
  stdout_tail: z.string(),
  stderr_tail: z.string(),
  isolation: isolationSchema,
  episode: episodeReportSchema.optional().describe('only for an agent of the harness `floe` whose episode has ended'),
});
export type AgentReport = z.infer<typeof agentReportSchema>;

/**
 * Describes the archive of the files that the agent left. It is `null` for a session without such files and for a task that keeps none.
 */
export const artifactsReportSchema = z.object({
  bytes: z.int().min(0).describe('size of the archive in bytes; 0 when there is no archive'),
  omitted: z
    .string()
    .nullable()
    .describe('which files the archive lacks and why, or why there is no archive; null when it is complete'),
});
export type ArtifactsReport = z.infer<typeof artifactsReportSchema>;

/** Why a finished sample cannot be trained on: its outcome, a post-run hook that dropped it, a missing reward, or missing tokens. */
export const unusableReasonSchema = z.union([
  outcomeSchema,
  z.enum(['dropped', 'no_reward', 'no_tokens', 'corrupt_record']),
]);
export type UnusableReason = z.infer<typeof unusableReasonSchema>;

/** Largest magnitude of a reward. Sums of such rewards stay well within the range of a double. */
const MAX_REWARD = 1e15;

export const rewardSchema = z.number().min(-MAX_REWARD).max(MAX_REWARD);

/** Network traffic of a session's sandboxes. Model calls are not included. */
export const egressReportSchema = z.object({
  allowed: z.record(z.string(), countSchema).describe('number of requests and tunnels that were allowed, by host'),
  refused: z.record(z.string(), countSchema).describe('number of requests and tunnels that were refused, by host'),
  sent_bytes: countSchema,
  received_bytes: countSchema,
});
export type EgressReport = z.infer<typeof egressReportSchema>;

/** How the sandbox of an agent was used, for tasks that let a node use one for several sessions. */
const runtimeReportSchema = z.object({
  reused: z.boolean().describe('whether an earlier session used the sandbox'),
  uses: z.int().min(1).describe('number of sessions that used the sandbox, with this one'),
});
export type RuntimeReport = z.infer<typeof runtimeReportSchema>;

/** The policy versions of the first and the last token that a session sampled; `null` when the engine did not report the version. */
export const policyVersionsSchema = z.object({ first: z.string().nullable(), last: z.string().nullable() });
export type PolicyVersions = z.infer<typeof policyVersionsSchema>;

/** A finished session without its token data. It is small enough for database rows, lists and logs. */
export const sessionSummarySchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: countSchema,
  attempt: countSchema,
  epoch: countSchema,
  status: terminalStatusSchema,
  outcome: outcomeSchema,
  policy: outcomePolicySchema,
  reward: rewardSchema
    .nullable()
    .describe('reward of the sample; null when it could not be computed, which is not the same as 0'),
  reward_components: z
    .record(z.string(), rewardSchema.nullable())
    .default({})
    .describe('parts of the reward and other scores, by name; null for one that could not be computed'),
  reward_details: metadataSchema,
  dropped: z
    .string()
    .nullable()
    .default(null)
    .describe('why a post-run hook of the node dropped the sample; null when none did'),
  trace_count: countSchema,
  trainable_tokens: countSchema,
  completion_count: countSchema,
  policy_versions: policyVersionsSchema
    .nullable()
    .default(null)
    .describe('null for a session without completions, and for one that its node did not describe'),
  audit: auditSchema.nullable(),
  calls: callSumsSchema
    .nullable()
    .default(null)
    .describe('sums over the model calls and tool calls; null for a session that its node did not describe'),
  cost: sessionCostSchema.nullable().default(null).describe('null for a session that its node did not describe'),
  timing: sessionTimingSchema,
  agent: agentReportSchema.nullable(),
  artifacts: artifactsReportSchema.nullable().default(null),
  egress: egressReportSchema
    .nullable()
    .default(null)
    .describe('null for a session whose network is neither proxy nor allowlist'),
  runtime: runtimeReportSchema.nullable().default(null).describe('null for a task without `runtime.reuse`'),
  node_id: z.string().nullable(),
  error: sessionErrorSchema.nullable(),
  unusable: unusableReasonSchema
    .nullable()
    .default(null)
    .describe('why the sample cannot be trained on; null when it can. Set by the server when the session ends'),
  metadata: metadataSchema,
});
export type SessionSummary = z.infer<typeof sessionSummarySchema>;

export const sessionResultSchema = sessionSummarySchema.extend({
  cursor: z.int().optional().describe('position in `GET /rollout/results`; set by the server'),
  trajectory: trajectorySchema.nullable(),
});
export type SessionResult = z.infer<typeof sessionResultSchema>;

/** One sample of a task, in the form in which lists of sessions contain it. */
export const sessionViewSchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: z.int(),
  status: sessionStatusSchema,
  attempt: z.int(),
  epoch: z.int(),
  node_id: z.string().nullable(),
  turns: z.int().describe('number of model calls that have received a reply so far'),
  sampled_tokens: z.int(),
  created_at: timestampSchema,
  updated_at: timestampSchema,
  summary: sessionSummarySchema
    .nullable()
    .describe('summary of the result; null until the session is in a terminal state'),
});
export type SessionView = z.infer<typeof sessionViewSchema>;

/** A session that a node runs now. */
export const liveSessionSchema = sessionViewSchema.omit({ summary: true, epoch: true }).extend({
  last_reply: z
    .string()
    .nullable()
    .describe(
      'beginning of the newest reply of the policy, at most 200 characters; null when the server does not know it',
    ),
});
export type LiveSession = z.infer<typeof liveSessionSchema>;

export const liveSessionsSchema = z.object({
  sessions: z.array(liveSessionSchema).describe('those that were submitted first'),
  total: z.int().describe('number of sessions that nodes run now, of all tasks'),
});
export type LiveSessions = z.infer<typeof liveSessionsSchema>;

/**
 * One attempt that a node has delivered: the attempt that ended its session, an attempt after which the session was retried, or the
 * partial result of an interrupted attempt.
 */
export const attemptViewSchema = z.object({
  attempt: z.int(),
  epoch: z.int(),
  kind: z
    .enum(['result', 'retried', 'partial'])
    .describe(
      'how the attempt ended; partial: its node died or lost the lease, and its records are kept but never trained on',
    ),
  delivered_at: timestampSchema,
  summary: sessionSummarySchema,
  parts: z
    .array(z.enum(['trajectory', 'completions', 'artifacts']))
    .describe('parts that can be fetched with ?attempt='),
});
export type AttemptView = z.infer<typeof attemptViewSchema>;
