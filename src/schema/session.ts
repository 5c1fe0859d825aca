import { z } from 'zod';
import { countSchema, idSchema, metadataSchema, timestampSchema } from './identifiers.ts';
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
  in_baseline: z.boolean().describe("counts in the group's reward baseline"),
});
export type OutcomePolicy = z.infer<typeof outcomePolicySchema>;

/** Milliseconds; null where the session never got there. Queue and READY time do not count against the budget. */
export const sessionTimingSchema = z.object({
  queued_ms: z.number().nullable(),
  init_ms: z.number().nullable(),
  ready_ms: z.number().nullable(),
  running_ms: z.number().nullable(),
  postrun_queue_ms: z.number().nullable(),
  build_ms: z.number().nullable(),
  eval_ms: z.number().nullable(),
  postrun_ms: z.number().nullable(),
  total_ms: z.number().describe('from the lease to the result'),
});
export type SessionTiming = z.infer<typeof sessionTimingSchema>;

export const sessionErrorSchema = z.object({
  code: z.string(),
  message: z.string(),
  stage: z.string().nullable(),
  details: metadataSchema.default({}),
});
export type SessionError = z.infer<typeof sessionErrorSchema>;

/** A sandboxed command's report, kept so that a failed run can be understood afterwards. */
export const agentReportSchema = z.object({
  exit_code: z.int().nullable(),
  turns: countSchema.describe('model calls that were answered'),
  stdout_tail: z.string(),
  stderr_tail: z.string(),
  isolation: z.enum(['sandboxed', 'none']),
});
export type AgentReport = z.infer<typeof agentReportSchema>;

/** The archive of what the agent left behind; null for a session: it left nothing, or nothing was to be kept. */
export const artifactsReportSchema = z.object({
  bytes: z.int().min(0).describe('of the archive; 0: there is none'),
  omitted: z.string().nullable().describe('what the archive lacks and why, or why there is none'),
});
export type ArtifactsReport = z.infer<typeof artifactsReportSchema>;

/** Why a finished sample is of no use to a trainer: its outcome, or what it lacks. */
export const unusableReasonSchema = z.union([outcomeSchema, z.enum(['no_reward', 'no_tokens'])]);
export type UnusableReason = z.infer<typeof unusableReasonSchema>;

/** So large that no sum of rewards leaves the range of a double. */
const MAX_REWARD = 1e15;

/** Everything about a finished session except its token data: small, and what rows, lists and logs hold. */
export const sessionSummarySchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: countSchema,
  attempt: countSchema,
  epoch: countSchema,
  status: terminalStatusSchema,
  outcome: outcomeSchema,
  policy: outcomePolicySchema,
  reward: z
    .number()
    .min(-MAX_REWARD)
    .max(MAX_REWARD)
    .nullable()
    .describe('null: could not be computed, which is not 0'),
  reward_details: metadataSchema,
  trace_count: countSchema,
  trainable_tokens: countSchema,
  completion_count: countSchema,
  audit: auditSchema.nullable(),
  timing: sessionTimingSchema,
  agent: agentReportSchema.nullable(),
  artifacts: artifactsReportSchema.nullable().default(null),
  node_id: z.string().nullable(),
  error: sessionErrorSchema.nullable(),
  /** Set by the server when the session ends; a node leaves it out. */
  unusable: unusableReasonSchema
    .nullable()
    .default(null)
    .describe('why the sample is of no use to a trainer; null: it is usable'),
  metadata: metadataSchema,
});
export type SessionSummary = z.infer<typeof sessionSummarySchema>;

export const sessionResultSchema = sessionSummarySchema.extend({
  cursor: z.int().optional().describe('position in `GET /rollout/results`; set by the server'),
  trajectory: trajectorySchema.nullable(),
});
export type SessionResult = z.infer<typeof sessionResultSchema>;

/** One sample of a task, as listed. */
export const sessionViewSchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: z.int(),
  status: sessionStatusSchema,
  attempt: z.int(),
  epoch: z.int(),
  node_id: z.string().nullable(),
  turns: z.int().describe('model calls answered so far'),
  sampled_tokens: z.int(),
  created_at: timestampSchema,
  updated_at: timestampSchema,
  summary: sessionSummarySchema.nullable().describe('once the session is terminal'),
});
export type SessionView = z.infer<typeof sessionViewSchema>;

/** One attempt at a session that a node has told of: the one that ended it, one that led to a retry, or the remains of one that was cut off. */
export const attemptViewSchema = z.object({
  attempt: z.int(),
  epoch: z.int(),
  kind: z
    .enum(['result', 'retried', 'partial'])
    .describe('partial: the node died or lost the lease; what it had recorded is kept but never trained'),
  delivered_at: timestampSchema,
  summary: sessionSummarySchema,
  parts: z.array(z.enum(['trajectory', 'completions', 'artifacts'])).describe('what can be fetched with ?attempt='),
});
export type AttemptView = z.infer<typeof attemptViewSchema>;
