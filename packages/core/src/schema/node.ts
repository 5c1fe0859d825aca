import { z } from 'zod';
import { engineDirectorySchema, engineInfoSchema } from './engine.ts';
import { countSchema, idSchema, timestampSchema } from './identifiers.ts';
import { sessionStatusSchema } from './session.ts';
import { taskRequestSchema } from './task.ts';

/** Maximum number of workers or places in one stage of a node. The sizes that a node registers limit how many sessions it may hold. */
const MAX_POOL_SIZE = 10_000;
/** Maximum number of characters of a node's explanation why it accepts no sessions. */
const MAX_REASON = 1_000;
/** Maximum number of characters of a reply in a heartbeat. */
export const MAX_REPLY_EXCERPT = 200;

export const nodeRegistrationSchema = z.strictObject({
  node_id: idSchema,
  instance: idSchema
    .default('none')
    .describe('id of the process: the newest process of a node id takes over, and calls of older ones are rejected'),
  host: z
    .string()
    .nullable()
    .default(null)
    .describe("address of the node's machine, to decide which engines are local"),
  dispatch_policy: z.enum(['pipeline', 'batch', 'bounded_batch']).default('pipeline'),
  gateway_url: z.string().nullable().default(null).describe("URL of the node's control listener, for operators"),
  max_init_workers: z.int().min(1).max(MAX_POOL_SIZE),
  ready_size: z.int().min(0).max(MAX_POOL_SIZE),
  max_run_workers: z.int().min(1).max(MAX_POOL_SIZE),
  max_postrun_workers: z.int().min(1).max(MAX_POOL_SIZE),
  memory_mb: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'memory for sessions in MiB, which the sum of the memory limits of all sessions leased to the node never exceeds; null for no limit',
    ),
});
export type NodeRegistration = z.infer<typeof nodeRegistrationSchema>;

/** Numbers of sessions in each stage. `*_queue_depth` counts the sessions that wait for a worker. */
const stageCountsSchema = z.strictObject({
  init_inflight: z.int().min(0),
  ready_depth: z.int().min(0),
  run_inflight: z.int().min(0),
  postrun_queue_depth: z.int().min(0),
  postrun_inflight: z.int().min(0),
});
export type StageCounts = z.infer<typeof stageCountsSchema>;

/** One process of a node that runs its sessions in several processes. */
const nodeProcessSchema = stageCountsSchema.extend({
  state: z
    .enum(['running', 'starting', 'stopped'])
    .describe(
      'starting also after the process has ended unexpectedly; stopped when it ended so often that it is not restarted',
    ),
  ends: z.int().min(0).describe('number of times that the process has ended unexpectedly and lost its sessions'),
  refuses: z
    .string()
    .max(MAX_REASON)
    .nullable()
    .describe('why this process accepts no sessions at present; null when it accepts them'),
});
export type NodeProcess = z.infer<typeof nodeProcessSchema>;

/** Numbers of a node's sessions in each stage, and the same for each of its processes. */
export const nodeStageMetricsSchema = stageCountsSchema.extend({
  processes: z
    .array(nodeProcessSchema)
    .optional()
    .describe('the processes of a node with `--processes` above 1, in their order; absent for a node of one process'),
});
export type NodeStageMetrics = z.infer<typeof nodeStageMetricsSchema>;

export const sessionProgressSchema = z.strictObject({
  session_id: idSchema,
  epoch: countSchema,
  status: sessionStatusSchema,
  turns: countSchema,
  sampled_tokens: countSchema,
  last_reply: z
    .string()
    .max(MAX_REPLY_EXCERPT)
    .optional()
    .describe('beginning of the newest reply of the policy; absent when an earlier heartbeat had it'),
});
export type SessionProgress = z.infer<typeof sessionProgressSchema>;

/**
 * The body of a heartbeat, which renews the leases of the listed sessions. With `wait_seconds`, the server holds the reply until there is
 * a session to stop.
 */
export const heartbeatSchema = z.strictObject({
  instance: idSchema.default('none'),
  metrics: nodeStageMetricsSchema,
  refuses: z
    .string()
    .max(MAX_REASON)
    .nullable()
    .default(null)
    .describe('why the node accepts no sessions at present; null when it accepts them'),
  sessions: z.array(sessionProgressSchema),
  lost: z
    .array(z.strictObject({ session_id: idSchema, epoch: countSchema }))
    .optional()
    .describe('sessions that ended with a process of the node; they return to the queue immediately'),
  engines: z
    .strictObject({
      revision: z.int().min(0).describe('revision of the engine directory that this node has applied'),
      heard: z
        .int()
        .min(0)
        .describe('revision of the engine directory that this node has received; the server sends only newer ones'),
      info: z
        .array(engineInfoSchema)
        .nullable()
        .describe(
          'state of each engine on the node; null: as the last heartbeat of this process had it, apart from the calls in flight',
        ),
      problems: z
        .array(z.object({ engine_id: z.string(), message: z.string() }))
        .describe('engines that the node could not register'),
      unpaused: z
        .array(z.object({ engine_id: z.string(), message: z.string() }))
        .default([])
        .describe(
          'engines that the pause in effect does not stop: they refused it, or cannot be paused while replies run on them',
        ),
    })
    .nullable()
    .default(null),
  wait_seconds: z.number().min(0).max(60).default(0),
});
export type Heartbeat = z.infer<typeof heartbeatSchema>;

export const heartbeatReplySchema = z.object({
  stop: z
    .array(z.object({ session_id: idSchema, epoch: z.int(), reason: z.enum(['cancelled', 'lease_lost']) }))
    .describe('sessions that the node must end immediately'),
  draining: z.boolean(),
  engines: engineDirectorySchema
    .nullable()
    .default(null)
    .describe('the engine directory; null when it has not changed since the revision that the node has received'),
  report_ms: z
    .int()
    .min(0)
    .optional()
    .describe('shortest time between two reports of progress, which grows with the number of nodes; absent: no limit'),
  lease_ahead: z
    .boolean()
    .optional()
    .describe(
      'false: the node leases only sessions for which it has a free RUN worker, because the queue is short; absent: it also fills READY',
    ),
});
export type HeartbeatReply = z.infer<typeof heartbeatReplySchema>;

export const leaseRequestSchema = z.strictObject({
  instance: idSchema.default('none'),
  slots: z.int().min(1).max(10_000),
  wait_seconds: z.number().min(0).max(60).default(0),
});
export type LeaseRequest = z.infer<typeof leaseRequestSchema>;

/**
 * A lease: a node's exclusive right to run one session for `lease_seconds`. The epoch increases with each lease of the session, and the
 * server rejects a result with an older epoch.
 */
export const leaseSchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: z.int(),
  attempt: z.int(),
  epoch: z.int(),
  lease_seconds: z.number(),
  queued_ms: z.number(),
  task: taskRequestSchema,
});
export type Lease = z.infer<typeof leaseSchema>;

export const leaseReplySchema = z.object({ leases: z.array(leaseSchema) });
export type LeaseReply = z.infer<typeof leaseReplySchema>;

export const nodeInfoSchema = nodeRegistrationSchema.extend({
  metrics: nodeStageMetricsSchema,
  healthy: z.boolean(),
  draining: z.boolean(),
  refuses: z
    .string()
    .nullable()
    .describe(
      'why the node accepts no sessions at present, for instance because its disk is full; null when it accepts them',
    ),
  leased_sessions: z.int(),
  leased_memory_mb: z.int().describe('sum of the memory limits of the leased sessions in MiB'),
  takeovers: z.int().describe('how many times a new process has taken over the node id'),
  registered_at: timestampSchema,
  last_heartbeat: timestampSchema,
});
export type NodeInfo = z.infer<typeof nodeInfoSchema>;

/** Returns the state of a node in one word: `silent`, `draining`, `refusing` or `healthy`. */
export function nodeState(node: Pick<NodeInfo, 'healthy' | 'draining' | 'refuses'>): string {
  if (!node.healthy) return 'silent';
  if (node.draining) return 'draining';
  return node.refuses === null ? 'healthy' : 'refusing';
}

/** The server's acknowledgement of a result, which it sends once the result is durable on disk. */
export const deliveryReplySchema = z.object({
  session_id: idSchema,
  duplicate: z.boolean().describe('whether the same result had already been delivered'),
  requeued: z.boolean().describe('whether the session was queued for another attempt'),
  cursor: z.int().nullable().describe('position in `GET /rollout/results`; null when the session was requeued'),
});
export type DeliveryReply = z.infer<typeof deliveryReplySchema>;

/** The server's acknowledgement of a partial result, which it sends once the partial result is durable on disk. */
export const partialReplySchema = z.object({
  session_id: idSchema,
  duplicate: z
    .boolean()
    .describe('whether this attempt had already been delivered; the server keeps the first delivery'),
});
export type PartialReply = z.infer<typeof partialReplySchema>;
