import { z } from 'zod';

/** What may be configured of a rollout server. All of it but the token is shown by `GET /rollout/status`. */
export const rolloutConfigSchema = z.strictObject({
  host: z.string().min(1).default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(8080).describe('0: any free port'),
  token: z.string().min(1).nullable().default(null).describe('bearer token of the control API; null: loopback only'),
  lease_seconds: z
    .number()
    .gt(0)
    .max(3600)
    .default(30)
    .describe('a session whose node is silent for this long is redone'),
  sweep_seconds: z.number().gt(0).max(60).default(1).describe('how often expired leases are looked for'),
  node_timeout_seconds: z.number().gt(0).default(30).describe('a node silent for this long is shown as unhealthy'),
  retry_backoff_seconds: z.number().min(0).default(1).describe('before the second attempt; doubles with each'),
  retry_backoff_max_seconds: z.number().min(0).default(60),
  tombstone_seconds: z.number().gt(0).default(300).describe('how long a cancelled unknown task id is refused'),
  callback_timeout_seconds: z.number().gt(0).default(30),
  callback_backoff_seconds: z.number().gt(0).default(1).describe('before the second try; doubles with each'),
  callback_backoff_max_seconds: z.number().gt(0).default(300),
  callback_hosts: z
    .array(z.string().min(1))
    .nullable()
    .default(null)
    .describe('host names that callbacks may go to; null: loopback when the server listens there, else any'),
  event_heartbeat_seconds: z.number().gt(0).default(15),
  shutdown_grace_seconds: z.number().min(0).default(5).describe('for requests in progress when the server closes'),
});
export type RolloutConfig = z.infer<typeof rolloutConfigSchema>;
export type RolloutConfigInput = z.input<typeof rolloutConfigSchema>;
