import { z } from 'zod';
import { idSchema } from '../schema/index.ts';

const listenerSchema = z.strictObject({
  host: z.string().min(1).default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(0).describe('0: any free port'),
});

/** Files in PEM; read again when they change. */
export const tlsFilesSchema = z.strictObject({
  cert: z.string().min(1).describe('certificate chain'),
  key: z.string().min(1).describe('private key'),
  client_ca: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('authorities that may have signed the certificate that every node must show; null: none is asked for'),
});
export type TlsFiles = z.infer<typeof tlsFilesSchema>;

/**
 * `admin`: everything. `trainer`: tasks, results, engines. `node`: what gateway nodes call. `viewer`: looking only.
 */
export const roleSchema = z.enum(['admin', 'trainer', 'node', 'viewer']);
export type Role = z.infer<typeof roleSchema>;

/** As Standard Webhooks has it: the key in base64 after a prefix. 24 bytes are the least that it allows. */
const callbackSecretSchema = z
  .string()
  .regex(
    /^whsec_(?:[A-Za-z0-9+/]{4}){8,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/,
    'must be whsec_ and at least 24 bytes in base64, as `echo whsec_$(openssl rand -base64 32)` makes one',
  );

/** What may be configured of a rollout server. All of it but secrets is shown by `GET /rollout/status`. */
export const rolloutConfigSchema = z.strictObject({
  host: z.string().min(1).default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(8080).describe('0: any free port'),
  token: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('bearer token of an admin; without any token: loopback only'),
  tokens: z
    .array(z.strictObject({ token: z.string().min(1), role: roleSchema }))
    .default([])
    .describe('further tokens, which may do what their role may'),
  tls: tlsFilesSchema.nullable().default(null).describe('null: plain HTTP'),
  node_listener: listenerSchema
    .nullable()
    .default(null)
    .describe('where nodes call; the main listener then takes none of their calls'),
  admin_listener: listenerSchema
    .nullable()
    .default(null)
    .describe('where metrics are; the main listener then has none'),
  max_connections: z.int().min(1).default(4096).describe('of one listener; more are closed at once'),
  max_connections_per_address: z.int().min(1).default(1024).describe('of one client address; more are closed at once'),
  headers_timeout_seconds: z.number().gt(0).default(10).describe('for the head of a request'),
  body_idle_seconds: z.number().gt(0).default(30).describe('a request whose body stands still for this long is ended'),
  max_delivering_mb: z
    .int()
    .min(1)
    .default(1024)
    .describe('results that are arriving at once, MiB; nodes deliver what is more a little later'),
  submits_per_second: z.number().gt(0).default(5000).describe('per token, or per address without one'),
  reads_per_second: z.number().gt(0).default(5000).describe('the same, for all else that is not a call of a node'),
  rate_burst_seconds: z.number().gt(0).default(5).describe('so much of its rate may be called for at once'),
  lease_seconds: z
    .number()
    .gt(0)
    .max(3600)
    .default(30)
    .describe('a session whose node is silent for this long is redone'),
  sweep_seconds: z.number().gt(0).max(60).default(1).describe('how often expired leases are looked for'),
  node_timeout_seconds: z.number().gt(0).default(30).describe('a node silent for this long is shown as unhealthy'),
  retry_backoff_seconds: z.number().min(0).default(1).describe('before the second attempt; doubles with each'),
  retry_backoff_max_seconds: z.number().min(0).default(60).describe('most that it doubles to'),
  avoid_node_seconds: z
    .number()
    .min(0)
    .default(30)
    .describe('another node comes first for a session that this one failed'),
  queue_order: z
    .enum(['fifo', 'longest_first'])
    .default('fifo')
    .describe("among a trainer's sessions of one priority; longest_first: by the durations seen so far"),
  trainer_weights: z
    .record(idSchema, z.number().gt(0))
    .default({})
    .describe('shares of the nodes while several trainers wait; 1 where none is named'),
  max_uncollected_results: z
    .int()
    .min(1)
    .default(100_000)
    .describe('a trainer with so many results that it has not collected gets no further sessions run'),
  max_uncollected_bytes: z
    .int()
    .min(1)
    .default(64 * 1024 ** 3)
    .describe('the same, by the size of the results'),
  tombstone_seconds: z.number().gt(0).default(300).describe('how long a cancelled unknown task id is refused'),
  callback_timeout_seconds: z.number().gt(0).default(30).describe('for one try to be answered'),
  callback_backoff_seconds: z.number().gt(0).default(1).describe('before the second try; doubles with each'),
  callback_backoff_max_seconds: z.number().gt(0).default(300).describe('most that it doubles to'),
  callback_parallel: z.int().min(1).max(1000).default(32).describe('callbacks under way at once'),
  callback_claim_seconds: z
    .number()
    .gt(0)
    .default(15)
    .describe('a callback whose server is silent for this long is tried by another server'),
  callback_secrets: z
    .array(callbackSecretSchema)
    .max(8)
    .default([])
    .describe('callbacks are signed with each of these; none: not signed'),
  callback_hosts: z
    .array(z.string().min(1))
    .nullable()
    .default(null)
    .describe('host names that callbacks may go to; null: loopback when the server listens there, else any other'),
  retain_tasks_hours: z
    .number()
    .gt(0)
    .nullable()
    .default(null)
    .describe('a task that ended and was collected is removed after so many hours of service; null: kept'),
  retention_sweep_seconds: z
    .number()
    .gt(0)
    .default(600)
    .describe('how often tasks and blobs that may go are looked for'),
  event_heartbeat_seconds: z.number().gt(0).default(15).describe('between signs of life on an event stream'),
  shutdown_grace_seconds: z.number().min(0).default(5).describe('for requests in progress when the server closes'),
});
export type RolloutConfig = z.infer<typeof rolloutConfigSchema>;
export type RolloutConfigInput = z.input<typeof rolloutConfigSchema>;

type Shown = Record<string, string | number | boolean | null>;

/** The configuration as anybody may see it: no secret, and nothing nested. */
export function shownConfig(config: RolloutConfig): Shown {
  const {
    token,
    tokens,
    callback_secrets,
    callback_hosts,
    tls,
    node_listener,
    admin_listener,
    trainer_weights,
    ...plain
  } = config;
  const place = (listener: z.infer<typeof listenerSchema> | null): string | null =>
    listener === null ? null : `${listener.host}:${listener.port}`;
  return {
    ...plain,
    callback_hosts: callback_hosts === null ? null : callback_hosts.join(' '),
    trainer_weights: Object.entries(trainer_weights)
      .map(([trainer, weight]) => `${trainer}=${weight}`)
      .join(' '),
    callbacks_signed: callback_secrets.length > 0,
    tokens: (token === null ? 0 : 1) + tokens.length,
    tls: tls !== null,
    client_certificates: tls?.client_ca != null,
    node_listener: place(node_listener),
    admin_listener: place(admin_listener),
  };
}
