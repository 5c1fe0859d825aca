import { z } from 'zod';
import { engineDirectorySchema, engineInfoSchema } from './engine.ts';
import { countSchema, idSchema, timestampSchema } from './identifiers.ts';
import { sessionStatusSchema } from './session.ts';
import { taskRequestSchema } from './task.ts';

/** The same limit as in a gateway's configuration. The sizes that a node registers bound how many sessions it may hold. */
const MAX_POOL_SIZE = 10_000;
/** Longest free text that a node may send about itself, in characters. */
const MAX_REASON = 1_000;

export const nodeRegistrationSchema = z.strictObject({
  node_id: idSchema,
  instance: idSchema
    .default('none')
    .describe(
      'changes with each process: the newest process of a node id takes over, and calls of an older one are rejected',
    ),
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
});
export type NodeRegistration = z.infer<typeof nodeRegistrationSchema>;

/** Number of sessions in each stage. `*_queue_depth` counts those that wait for a worker. */
export const nodeStageMetricsSchema = z.strictObject({
  init_inflight: z.int().min(0),
  ready_depth: z.int().min(0),
  run_inflight: z.int().min(0),
  postrun_queue_depth: z.int().min(0),
  postrun_inflight: z.int().min(0),
});
export type NodeStageMetrics = z.infer<typeof nodeStageMetricsSchema>;

export const sessionProgressSchema = z.strictObject({
  session_id: idSchema,
  epoch: countSchema,
  status: sessionStatusSchema,
  turns: countSchema,
  sampled_tokens: countSchema,
});
export type SessionProgress = z.infer<typeof sessionProgressSchema>;

/** Renews the leases of the listed sessions. With `wait_seconds` the server holds the reply until there is a session to stop. */
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
  engines: z
    .strictObject({
      revision: z.int().min(0).describe('revision of the engine directory that this node has applied'),
      heard: z
        .int()
        .min(0)
        .describe('revision of the engine directory that this node has received; the server sends only newer ones'),
      info: z.array(engineInfoSchema),
      problems: z
        .array(z.object({ engine_id: z.string(), message: z.string() }))
        .describe('engines that the node could not register'),
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
    .describe('null when nothing changed since the revision that the node has received'),
});
export type HeartbeatReply = z.infer<typeof heartbeatReplySchema>;

export const leaseRequestSchema = z.strictObject({
  instance: idSchema.default('none'),
  slots: z.int().min(1).max(10_000),
  wait_seconds: z.number().min(0).max(60).default(0),
});
export type LeaseRequest = z.infer<typeof leaseRequestSchema>;

/** A node's claim on one session for `lease_seconds`. A result with an older epoch is rejected. */
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
  takeovers: z.int().describe('how many times a new process has taken over the node id'),
  registered_at: timestampSchema,
  last_heartbeat: timestampSchema,
});
export type NodeInfo = z.infer<typeof nodeInfoSchema>;

/** The state of a node in one word: `silent`, `draining`, `refusing` or `healthy`. */
export function nodeState(node: Pick<NodeInfo, 'healthy' | 'draining' | 'refuses'>): string {
  if (!node.healthy) return 'silent';
  if (node.draining) return 'draining';
  return node.refuses === null ? 'healthy' : 'refusing';
}

/** The server's acknowledgement of a result, sent once the result is on disk. */
export const deliveryReplySchema = z.object({
  session_id: idSchema,
  duplicate: z.boolean().describe('whether the same result had already been delivered'),
  requeued: z.boolean().describe('whether the session was queued for another attempt'),
  cursor: z.int().nullable().describe('position in `GET /rollout/results`; null when the session was requeued'),
});
export type DeliveryReply = z.infer<typeof deliveryReplySchema>;

/** The server's acknowledgement of a partial result, sent once it is on disk. */
export const partialReplySchema = z.object({
  session_id: idSchema,
  duplicate: z.boolean().describe('whether this attempt had already delivered; the server keeps the first delivery'),
});
export type PartialReply = z.infer<typeof partialReplySchema>;
