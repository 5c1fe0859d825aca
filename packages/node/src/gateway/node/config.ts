import { pythonPluginSchema } from '@floe-rl/agents';
import { journalModeSchema } from '@floe-rl/capture';
import { ServerList } from '@floe-rl/client';
import { asFloeError } from '@floe-rl/core';
import {
  engineKindNameSchema,
  engineLocalitySchema,
  enginePolicySchema,
  engineSpecSchema,
  environmentSchema,
  hostPatternSchema,
  idSchema,
  mcpServerSchema,
  nodeRegistrationSchema,
  placeSchema,
  runtimeBackendSchema,
} from '@floe-rl/core/schema';
import { DOCKER_SOCKET, imageSettingsSchema } from '@floe-rl/sandbox';
import { z } from 'zod';

/**
 * Maximum number of sessions in each of the four stages that a session passes through on a node. READY is a buffer of started sandboxes;
 * each other stage has this number of workers.
 */
export const poolSizesSchema = z.strictObject({
  init: z.int().min(1).max(10_000).default(4),
  ready: z.int().min(0).max(10_000).default(2),
  run: z.int().min(1).max(10_000).default(4),
  postrun: z.int().min(1).max(10_000).default(4),
});
export type PoolSizes = z.infer<typeof poolSizesSchema>;

const serverListSchema = z
  .string()
  .superRefine((text, context) => {
    try {
      new ServerList(text);
    } catch (thrown) {
      context.addIssue({ code: 'custom', message: asFloeError(thrown).message });
    }
  })
  .describe(
    'URL of the rollout server, the URLs of several replicas separated by commas, or the `file:` URL of their folder',
  );

/** Paths of ES modules by the name of their plug-in, relative to the working directory. */
const pluginModulesSchema = z.record(idSchema, z.string().min(1)).default({});

export const gatewayConfigSchema = z.strictObject({
  node_id: idSchema,
  server_url: serverListSchema,
  token: z.string().min(1).nullable().default(null),
  server_tls: z
    .strictObject({
      ca: z
        .string()
        .min(1)
        .nullable()
        .optional()
        .describe('certificates of the authorities to trust; default: those that Node trusts'),
      cert: z.string().min(1).nullable().optional().describe('client certificate of the node'),
      key: z.string().min(1).nullable().optional(),
    })
    .nullable()
    .default(null)
    .describe('PEM files for https to the server, read for each connection'),
  control_tls: z
    .strictObject({ cert: z.string().min(1), key: z.string().min(1) })
    .nullable()
    .default(null)
    .describe('PEM files of the control listener, reloaded when they change; null for plain HTTP'),
  state_dir: z.string().min(1),
  harness_dir: z.string().min(1).describe('directory into which `floe harness install` installs harnesses'),
  processes: z
    .int()
    .min(1)
    .max(256)
    .default(1)
    .describe(
      'number of processes that run the sessions of the node; its limits are divided among them; see docs/nodes.md',
    ),
  pools: poolSizesSchema.prefault({}),
  dispatch_policy: nodeRegistrationSchema.shape.dispatch_policy.describe(
    'how the stages of different sessions overlap; see docs/scheduling.md',
  ),
  memory_mb: nodeRegistrationSchema.shape.memory_mb,
  start_limits: z
    .partialRecord(runtimeBackendSchema, z.int().min(1).max(10_000))
    .default({})
    .describe(
      'most concurrent sandbox starts by back end; a back end without an entry is limited only by the INIT workers',
    ),
  start_rates: z
    .partialRecord(runtimeBackendSchema, z.number().min(0.001).max(10_000))
    .default({})
    .describe(
      'most sandbox starts per second by back end, evenly spaced; a back end without an entry has no such limit',
    ),
  prepared: z
    .strictObject({
      max_count: z.int().min(0).max(10_000).default(8),
      max_mb: z.int().min(0).default(2048),
    })
    .prefault({})
    .describe(
      'most snapshots of prepared sandboxes that are kept for tasks with `runtime.share_prepared`, and their memory in MiB, in addition to that of sessions',
    ),
  prewarmed: z
    .strictObject({
      count: z.int().min(0).max(10_000).default(0),
      max_mb: z.int().min(0).default(16_384),
      idle_seconds: z.number().gt(0).max(86_400).default(600),
    })
    .prefault({})
    .describe(
      'number of sandboxes that are kept started, for each `runtime` of recent sessions, the sum of their memory limits in MiB, in addition to that of sessions, and the time after which they are ended when no such session has started',
    ),
  background_stops: z
    .strictObject({
      max_count: z.int().min(0).max(10_000).default(4),
      max_mb: z.int().min(0).default(16_384),
    })
    .prefault({})
    .describe(
      'most sessions whose results are delivered before their sandboxes have ended, and the sum of the memory limits of these sandboxes in MiB, in addition to that of sessions',
    ),
  reused_runtimes: z
    .strictObject({
      max_count: z.int().min(0).max(10_000).default(4),
      max_mb: z.int().min(0).default(16_384),
      idle_seconds: z.number().gt(0).max(86_400).default(600),
    })
    .prefault({})
    .describe(
      'most sandboxes of tasks with `runtime.reuse` that are kept while no session uses them, the sum of their memory limits in MiB, in addition to that of sessions, and the time after which an unused one is ended',
    ),
  engines: z
    .array(engineSpecSchema)
    .default([])
    .describe('engines that the node uses from its start; more can be registered at the server at any time'),
  engine_policy: enginePolicySchema
    .default('least_in_flight')
    .describe("how a pool picks the engine for a session's next model call"),
  engine_locality: engineLocalitySchema
    .default('none')
    .describe(
      "whether engines on the node's own host, then in its rack, then in its zone are preferred while they have capacity (max_concurrency, limits)",
    ),
  place: placeSchema.prefault({}).describe('rack and zone of this machine, to decide which engines are near'),
  host: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'name or address of this machine as in the URLs of its engines; null for the address from which it reaches the server',
    ),
  default_backend: runtimeBackendSchema.default('bubblewrap'),
  docker_socket: z
    .string()
    .min(1)
    .default(DOCKER_SOCKET)
    .describe('Unix socket of the Docker daemon that runs the sandboxes of the back end docker'),
  images: imageSettingsSchema.prefault({}).describe('the images of sandboxes'),
  podman_socket: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'Unix socket of the Podman service that runs the sandboxes of the back end podman; null for the one of the gateway’s user',
    ),
  apptainer_command: z
    .string()
    .min(1)
    .default('apptainer')
    .describe('program Apptainer, a path or a name, that runs the sandboxes of the back end apptainer'),
  upload_roots: z.array(z.string()).default([]).describe('host directories that prepare actions may read'),
  math_python: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'Python interpreter with the package math-verify, for the evaluator `answer`; null for the one that `floe evaluator install` installed',
    ),
  builders: z
    .record(idSchema, z.string().min(1))
    .default({})
    .describe(
      'path of the module of each custom builder, by the name that tasks use; see docs/guides/write-a-builder.md',
    ),
  evaluators: z
    .record(idSchema, z.string().min(1))
    .default({})
    .describe(
      'path of the module of each custom evaluator, by the name that tasks use; see docs/guides/write-an-evaluator.md',
    ),
  plugins: z
    .strictObject({
      agents: pluginModulesSchema.describe('path of the module of each agent, by the name that tasks use'),
      engines: z
        .record(engineKindNameSchema, z.string().min(1))
        .default({})
        .describe('path of the module of each kind of engine, by the name that `kind` of an engine gives'),
      environments: pluginModulesSchema.describe('path of the module of each environment, by the name that tasks use'),
      handlers: pluginModulesSchema.describe(
        'path of the module of each handler, by any name; tasks with the agent `handler` name a data source',
      ),
      tools: pluginModulesSchema.describe('path of the module of each tool or toolset, by the name that tasks use'),
      python: z
        .record(idSchema, pythonPluginSchema)
        .default({})
        .describe(
          'Python classes of environments, runners and handlers, by the name that tasks use; see docs/python-plugins.md',
        ),
      services: z
        .record(z.string().min(1), z.string())
        .default({})
        .describe('settings for tools and environments, such as the address of a search service'),
      mcp_servers: z
        .array(mcpServerSchema)
        .refine(
          (servers) => new Set(servers.map(({ name }) => name)).size === servers.length,
          'must have different names',
        )
        .default([])
        .describe(
          'MCP servers whose tools agents get as the toolset `mcp`; a `stdio` server runs on the node, outside of sandboxes, once for each session that uses it',
        ),
      env: environmentSchema
        .default({})
        .describe('environment variables of the processes that run agents, environments and tools'),
      processes: z
        .int()
        .min(1)
        .max(256)
        .nullable()
        .default(null)
        .describe('maximum number of processes for each set of modules; null: one less than there are processors'),
      blocked_seconds: z
        .number()
        .gt(0)
        .default(30)
        .describe('time for which code of a plug-in may block its process, before the process is ended'),
    })
    .prefault({}),
  post_run_hooks: z
    .array(
      z.strictObject({
        name: idSchema,
        module: z.string().min(1).describe('path of the module, relative to the working directory'),
        timeout_seconds: z.number().gt(0).max(3600).default(30),
      }),
    )
    .refine((hooks) => new Set(hooks.map(({ name }) => name)).size === hooks.length, 'must have different names')
    .default([])
    .describe('modules that run after the evaluator of each session, in this order; see docs/post-run-hooks.md'),
  allow_local: z
    .boolean()
    .default(false)
    .describe('whether a task may request to run without isolation although the default back end isolates'),
  allow_host_network: z.boolean().default(false),
  egress_hosts: z
    .array(hostPatternSchema)
    .nullable()
    .default([])
    .describe(
      'hosts that sandboxes with network proxy or allowlist may reach; null for all hosts of the Internet. Hosts of private networks and of this machine must be listed by their own name or address',
    ),
  control: z
    .strictObject({ host: z.string(), port: z.int().min(0).max(65_535) })
    .default({ host: '127.0.0.1', port: 0 }),
  proxy: z.strictObject({ host: z.string(), port: z.int().min(0).max(65_535) }).default({ host: '127.0.0.1', port: 0 }),
  lease_wait_seconds: z
    .number()
    .min(0)
    .max(60)
    .default(20)
    .describe('longest time that the server may hold a lease call until there are sessions'),
  heartbeat_seconds: z.number().gt(0).max(60).default(5).describe('longest time between two heartbeats to the server'),
  stall_seconds: z
    .number()
    .gt(0)
    .nullable()
    .default(900)
    .describe('a stage without progress is ended after this time, unless its task sets another; null for no limit'),
  journal: journalModeSchema
    .default('sync')
    .describe(
      'sync: no reply ends before its record is on the disk; batched: records are synced up to some milliseconds after the reply, which no reply waits for, and a loss of power may lose these last records',
    ),
  undelivered_mb: z
    .number()
    .gt(0)
    .default(1024)
    .describe('size of undelivered results in MiB at which the node leases no more sessions'),
});
export type GatewayConfig = z.infer<typeof gatewayConfigSchema>;
export type GatewayConfigInput = z.input<typeof gatewayConfigSchema>;
