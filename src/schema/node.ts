import { z } from 'zod';
import { engineDirectorySchema, engineInfoSchema } from './engine.ts';
import { countSchema, idSchema, timestampSchema } from './identifiers.ts';
import { sessionStatusSchema } from './session.ts';
import { taskRequestSchema } from './task.ts';

/** As a gateway's own configuration has it. What a node may hold is bounded by the sizes that it tells. */
const MAX_POOL_SIZE = 10_000;
/** Characters of what a node says of itself. */
const MAX_REASON = 1_000;

export const nodeRegistrationSchema = z.strictObject({
  node_id: idSchema,
  instance: idSchema
    .default('none')
    .describe('new with each process: the newest process of a node id takes over, an older one is refused'),
  host: z.string().nullable().default(null).describe('address of the machine, to tell which engines are near'),
  dispatch_policy: z.enum(['pipeline', 'batch', 'bounded_batch']).default('pipeline'),
  gateway_url: z.string().nullable().default(null).describe("the node's control listener, for people to look at"),
  max_init_workers: z.int().min(1).max(MAX_POOL_SIZE),
  ready_size: z.int().min(0).max(MAX_POOL_SIZE),
  max_run_workers: z.int().min(1).max(MAX_POOL_SIZE),
  max_postrun_workers: z.int().min(1).max(MAX_POOL_SIZE),
});
export type NodeRegistration = z.infer<typeof nodeRegistrationSchema>;

/** Sessions in each stage; `*_queue_depth` are waiting for a worker. */
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

/** Renews the leases of the listed sessions. With `wait_seconds` the reply is held until there is something to cancel. */
export const heartbeatSchema = z.strictObject({
  instance: idSchema.default('none'),
  metrics: nodeStageMetricsSchema,
  refuses: z
    .string()
    .max(MAX_REASON)
    .nullable()
    .default(null)
    .describe('why the node takes no sessions for now; null: it takes them'),
  sessions: z.array(sessionProgressSchema),
  engines: z
    .strictObject({
      revision: z.int().min(0).describe('of the engine directory that this node has carried out'),
      heard: z.int().min(0).describe('of the one that it knows; it is told of newer ones only'),
      info: z.array(engineInfoSchema),
      problems: z
        .array(z.object({ engine_id: z.string(), message: z.string() }))
        .describe('engines it could not register'),
    })
    .nullable()
    .default(null),
  wait_seconds: z.number().min(0).max(60).default(0),
});
export type Heartbeat = z.infer<typeof heartbeatSchema>;

export const heartbeatReplySchema = z.object({
  stop: z
    .array(z.object({ session_id: idSchema, epoch: z.int(), reason: z.enum(['cancelled', 'lease_lost']) }))
    .describe('sessions that the node must end now'),
  draining: z.boolean(),
  engines: engineDirectorySchema
    .nullable()
    .default(null)
    .describe('null: nothing has changed since the revision that the node named'),
});
export type HeartbeatReply = z.infer<typeof heartbeatReplySchema>;

export const leaseRequestSchema = z.strictObject({
  instance: idSchema.default('none'),
  slots: z.int().min(1).max(10_000),
  wait_seconds: z.number().min(0).max(60).default(0),
});
export type LeaseRequest = z.infer<typeof leaseRequestSchema>;

/** A node's claim on one session. A result that carries an older epoch is refused. */
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
  refuses: z.string().nullable().describe('why it takes no sessions for now: its disk, for instance, is full'),
  leased_sessions: z.int(),
  takeovers: z.int().describe('how often a new process has taken the id over'),
  registered_at: timestampSchema,
  last_heartbeat: timestampSchema,
});
export type NodeInfo = z.infer<typeof nodeInfoSchema>;

/** One word for it. */
export function nodeState(node: Pick<NodeInfo, 'healthy' | 'draining' | 'refuses'>): string {
  if (!node.healthy) return 'silent';
  if (node.draining) return 'draining';
  return node.refuses === null ? 'healthy' : 'refusing';
}

/** The server's acknowledgement of a result: it is on disk. */
export const deliveryReplySchema = z.object({
  session_id: idSchema,
  duplicate: z.boolean().describe('the same result was delivered before'),
  requeued: z.boolean().describe('the attempt failed for a reason that is worth a new one'),
  cursor: z.int().nullable().describe('position in `GET /rollout/results`; null when requeued'),
});
export type DeliveryReply = z.infer<typeof deliveryReplySchema>;

/** The server's acknowledgement of what was left of an attempt: it is on disk. */
export const partialReplySchema = z.object({
  session_id: idSchema,
  duplicate: z.boolean().describe('this attempt has delivered before; what came first is kept'),
});
export type PartialReply = z.infer<typeof partialReplySchema>;
