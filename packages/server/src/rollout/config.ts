import { GIB } from '@floe-rl/core';
import { engineKindNameSchema, idSchema, roleSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { prorlHandlerSchema } from './prorl/schema.ts';

const listenerSchema = z.strictObject({
  host: z.string().min(1).default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(0).describe('0: any free port'),
});

/** Paths of a listener's TLS files in PEM format. The server reloads a file when it changes. */
const tlsFilesSchema = z.strictObject({
  cert: z.string().min(1).describe('certificate chain'),
  key: z.string().min(1).describe('private key'),
  client_ca: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'certificate authorities; every node must present a certificate signed by one of them. null: no client certificate is required',
    ),
});

/**
 * A secret for the signatures of callbacks, in the format of Standard Webhooks: a prefix and the key in base64. The standard requires a key of
 * at least 24 bytes.
 */
const callbackSecretSchema = z
  .string()
  .regex(
    /^whsec_(?:[A-Za-z0-9+/]{4}){8,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/,
    'must be whsec_ followed by at least 24 bytes in base64; create one with `echo whsec_$(openssl rand -base64 32)`',
  );

/** Whether a text is an origin as browsers send it: scheme, host and port of a page, or the text `null` for a page without an origin. */
function isOrigin(text: string): boolean {
  return text === 'null' || (URL.canParse(text) && new URL(text).origin === text);
}

/** The configuration of a rollout server. `GET /rollout/status` shows it without secrets and without nested values. */
export const rolloutConfigSchema = z.strictObject({
  host: z.string().min(1).default('127.0.0.1').describe('name or address of the interface on which the server listens'),
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
    .describe('additional tokens, each with the permissions of its role'),
  tls: tlsFilesSchema.nullable().default(null).describe('null: plain HTTP'),
  node_listener: listenerSchema
    .nullable()
    .default(null)
    .describe('separate listener for nodes; the main listener then refuses their calls'),
  admin_listener: listenerSchema
    .nullable()
    .default(null)
    .describe('separate listener for metrics; the main listener then has none'),
  polar: z
    .enum(['off', 'prefix', 'root'])
    .default('off')
    .describe(
      "where the API of NVIDIA's Polar is served: off: nowhere; prefix: below /polar; root: at the root as well, and floe's own API below /floe. Its GET calls need no token",
    ),
  prorl_handlers: z
    .record(z.string().min(1), prorlHandlerSchema)
    .default({})
    .describe(
      'templates of the tasks of ProRL Agent clients by `data_source`, with `*` for all others; `{{instance.path}}` stands for a field of the instance',
    ),
  evaluators: z
    .array(idSchema)
    .default([])
    .describe('names of the custom evaluators that the nodes have, so that tasks may use them'),
  engine_kinds: z
    .array(engineKindNameSchema)
    .default([])
    .describe(
      "names of the engine modules that the nodes have beside floe's own kinds, so that engines may have them as `kind`",
    ),
  plugins: z
    .array(idSchema)
    .default([])
    .describe(
      "names of the agents, environments and tools that the nodes have beside floe's own, so that tasks may use them",
    ),
  dataset_dir: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('directory below which batch streams may name files of rows; null: none'),
  tokenizers: z
    .record(z.string().min(1), z.string().min(1))
    .default({})
    .describe(
      'folders with the tokenizer.json of a model, by the name that engines give it: the dashboard shows the texts of tokens with them',
    ),
  page_origins: z
    .array(z.string().refine(isOrigin, 'must be an origin such as https://docs.example.org, or null'))
    .default([])
    .describe(
      'origins of other web pages that may call the API from a browser, with a token: `https://docs.example.org`, or `null` for pages that were opened as files',
    ),
  search_kb: z
    .int()
    .min(0)
    .max(64)
    .default(16)
    .describe(
      'thousands of characters of the messages of each session by which `GET /sessions?text=` finds it: the beginning and the end; 0: none, and no search',
    ),
  batch_filters: z
    .record(idSchema, z.string().min(1))
    .default({})
    .describe(
      'modules that decide which groups of batch streams are handed out, by the name that `accept.filter` gives; a module exports acceptGroup(group)',
    ),
  max_connections: z.int().min(1).default(4096).describe('per listener; further connections are closed immediately'),
  max_connections_per_address: z
    .int()
    .min(1)
    .default(1024)
    .describe('per client address; further connections are closed immediately'),
  headers_timeout_seconds: z.number().gt(0).default(10).describe('time limit for the head of a request'),
  body_idle_seconds: z
    .number()
    .gt(0)
    .default(30)
    .describe('a request whose body makes no progress for this long is ended'),
  max_delivering_mb: z
    .int()
    .min(1)
    .default(1024)
    .describe(
      'total size in MiB of results that may be arriving concurrently; nodes retry further ones a little later',
    ),
  submits_per_second: z
    .number()
    .gt(0)
    .default(5000)
    .describe('submitted tasks per token, or per client address where there are no tokens'),
  reads_per_second: z.number().gt(0).default(5000).describe('the same limit for all other calls except those of nodes'),
  rate_burst_seconds: z.number().gt(0).default(5).describe('size of a burst, in seconds of the rate'),
  lease_seconds: z
    .number()
    .gt(0)
    .max(3600)
    .default(30)
    .describe('a session whose node is silent for this long is taken back and retried'),
  sweep_seconds: z.number().gt(0).max(60).default(1).describe('interval between checks for expired leases'),
  node_timeout_seconds: z.number().gt(0).default(30).describe('a node silent for this long is shown as unhealthy'),
  retry_backoff_seconds: z
    .number()
    .min(0)
    .default(1)
    .describe('pause before the second attempt; doubles with each further attempt'),
  retry_backoff_max_seconds: z.number().min(0).default(60).describe('longest pause'),
  avoid_node_seconds: z
    .number()
    .min(0)
    .default(30)
    .describe('for this long, other nodes are preferred for a session that failed on a node'),
  max_node_losses: z
    .int()
    .min(1)
    .max(10)
    .default(2)
    .describe(
      'number of attempts that were lost with their nodes after which a session is not leased again, because it may be what ends them',
    ),
  queue_order: z
    .enum(['fifo', 'longest_first'])
    .default('fifo')
    .describe(
      "order of a trainer's sessions with equal priority; longest_first: longest expected duration first, according to the durations seen so far",
    ),
  trainer_weights: z
    .record(idSchema, z.number().gt(0))
    .default({})
    .describe('relative shares of the nodes while several trainers have waiting sessions; default 1 each'),
  max_uncollected_results: z
    .int()
    .min(1)
    .default(100_000)
    .describe('no further sessions of a trainer are started while it has this many uncollected results'),
  max_uncollected_bytes: z
    .int()
    .min(1)
    .default(64 * GIB)
    .describe('the same limit, on the total size of the results'),
  tombstone_seconds: z
    .number()
    .gt(0)
    .default(300)
    .describe('how long a task id that was cancelled before it was submitted is refused'),
  callback_timeout_seconds: z.number().gt(0).default(30).describe('time limit for the trainer to answer a callback'),
  callback_backoff_seconds: z
    .number()
    .gt(0)
    .default(1)
    .describe('pause before the second try of a callback; doubles with each further try'),
  callback_backoff_max_seconds: z.number().gt(0).default(300).describe('longest pause'),
  callback_parallel: z.int().min(1).max(1000).default(32).describe('largest number of concurrent callbacks'),
  callback_claim_seconds: z
    .number()
    .gt(0)
    .default(15)
    .describe('a callback whose server is silent for this long is delivered by another server'),
  callback_secrets: z
    .array(callbackSecretSchema)
    .max(8)
    .default([])
    .describe('callbacks are signed with each of these secrets; without any they are not signed'),
  callback_hosts: z
    .array(z.string().min(1))
    .nullable()
    .default(null)
    .describe(
      'host names that callbacks may be sent to; null: only loopback when the server listens on loopback, else everything but loopback',
    ),
  retain_tasks_hours: z
    .number()
    .gt(0)
    .nullable()
    .default(null)
    .describe(
      'a task that ended and was collected is removed after this many hours of service time; null: kept indefinitely',
    ),
  retention_sweep_seconds: z.number().gt(0).default(600).describe('interval between removals of old tasks and blobs'),
  event_heartbeat_seconds: z
    .number()
    .gt(0)
    .default(15)
    .describe('interval between heartbeat comments on an event stream'),
  shutdown_grace_seconds: z
    .number()
    .min(0)
    .default(5)
    .describe('time limit for requests in progress when the server closes'),
});
export type RolloutConfig = z.infer<typeof rolloutConfigSchema>;
export type RolloutConfigInput = z.input<typeof rolloutConfigSchema>;

type ShownConfig = Record<string, string | number | boolean | null>;

/** Returns the configuration as `GET /rollout/status` shows it: without secrets, and without nested values. */
export function shownConfig(config: RolloutConfig): ShownConfig {
  const {
    token,
    tokens,
    callback_secrets,
    callback_hosts,
    tls,
    node_listener,
    admin_listener,
    trainer_weights,
    prorl_handlers,
    evaluators,
    engine_kinds,
    plugins,
    batch_filters,
    tokenizers,
    page_origins,
    ...plain
  } = config;
  const addressOf = (listener: z.infer<typeof listenerSchema> | null): string | null =>
    listener === null ? null : `${listener.host}:${listener.port}`;
  return {
    ...plain,
    callback_hosts: callback_hosts === null ? null : callback_hosts.join(' '),
    trainer_weights: Object.entries(trainer_weights)
      .map(([trainer, weight]) => `${trainer}=${weight}`)
      .join(' '),
    prorl_handlers: Object.keys(prorl_handlers).join(' '),
    evaluators: evaluators.join(' '),
    engine_kinds: engine_kinds.join(' '),
    plugins: plugins.join(' '),
    batch_filters: Object.keys(batch_filters).join(' '),
    tokenizers: Object.keys(tokenizers).join(' '),
    page_origins: page_origins.join(' '),
    callbacks_signed: callback_secrets.length > 0,
    tokens: (token === null ? 0 : 1) + tokens.length,
    tls: tls !== null,
    client_certificates: tls?.client_ca != null,
    node_listener: addressOf(node_listener),
    admin_listener: addressOf(admin_listener),
  };
}
