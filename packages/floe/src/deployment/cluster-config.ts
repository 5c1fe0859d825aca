import {
  engineKindNameSchema,
  engineLocalitySchema,
  idSchema,
  logprobsModeSchema,
  runtimeBackendSchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { argumentSchema, nameSchema, pathSchema, portSchema } from './shell-arguments.ts';
import { slurmJobSchema } from './slurm-job.ts';

const optionsSchema = z.array(argumentSchema).default([]);

const databaseSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z
      .literal('sqlite')
      .describe(
        'embedded in the only server, with its file in the run directory on the shared file system; for trials',
      ),
  }),
  z.strictObject({
    kind: z.literal('postgres').describe('a PostgreSQL that runs as a job of the cluster'),
    port: portSchema.default(5432),
    bin: pathSchema.default('/usr/lib/postgresql/15/bin').describe('folder with `initdb` and `postgres`'),
    data: pathSchema
      .nullable()
      .default(null)
      .describe(
        'folder for its data; null for one next to the run directory. For a disk of one host, set `nodelist` as well',
      ),
    user: nameSchema
      .default('postgres')
      .describe('user that it runs as when jobs run as root, because PostgreSQL refuses to run as root'),
    max_connections: z.int().min(10).default(200),
    job: slurmJobSchema.prefault({}),
  }),
  z.strictObject({
    kind: z.literal('external').describe('an existing PostgreSQL'),
    url_file: pathSchema.describe('file with its URL, readable by its owner only'),
  }),
]);

/** Schema of an inference server that each node of a role starts on its host. A role is a group of nodes with equal settings. */
const nodeEngineSchema = z.strictObject({
  command: z
    .array(argumentSchema)
    .min(1)
    .describe('program and arguments; `{port}`, `{host}` and `{node_id}` are replaced by their values on the node'),
  kind: engineKindNameSchema.default('vllm'),
  pool: idSchema.default('default').describe('engines of one pool serve one policy'),
  model: argumentSchema.nullable().default(null).describe("name of the model; null for the server's first model"),
  logprobs_mode: logprobsModeSchema
    .nullable()
    .default(null)
    .describe('which logprobs it reports; null for the default of its kind'),
  max_concurrency: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      "maximum number of concurrent calls; beyond it the node's sessions use engines of other hosts. null for no limit",
    ),
  port: portSchema.default(8000).describe('port of the first instance; the others get the next numbers'),
  count: z.int().min(1).max(64).default(1).describe('number of instances on each node'),
  gpus: z
    .int()
    .min(1)
    .max(64)
    .nullable()
    .default(null)
    .describe("number of GPUs of each instance, assigned in order from the job's; null for all GPUs"),
  health: z
    .string()
    .regex(/^\/[A-Za-z0-9_./-]*$/, 'must be a path')
    .default('/health')
    .describe('path that replies 200 once the server is ready'),
  ready_seconds: z
    .int()
    .min(1)
    .max(86_400)
    .default(1800)
    .describe('maximum time until it is ready; loading a large model takes long'),
});
export type NodeEngine = z.infer<typeof nodeEngineSchema>;

const nodeRoleSchema = z.strictObject({
  name: nameSchema,
  count: z.int().min(1).max(4096).default(1).describe('number of nodes, each of which is a separate job'),
  pools: z
    .strictObject({
      init: z.int().min(1).max(10_000).nullable().default(null),
      ready: z.int().min(0).max(10_000).nullable().default(null),
      run: z.int().min(1).max(10_000).nullable().default(null),
      postrun: z.int().min(1).max(10_000).nullable().default(null),
    })
    .prefault({})
    .describe('number of workers of each stage; null to derive it from the number of cores'),
  backend: runtimeBackendSchema
    .nullable()
    .default(null)
    .describe('default runtime; null for bubblewrap where it works'),
  engine_locality: engineLocalitySchema
    .default('prefer_local')
    .describe("whether engines on a node's own host are preferred while they have capacity"),
  engines: z.array(nodeEngineSchema).default([]).describe('inference servers that each node of this role starts'),
  options: optionsSchema.describe('additional options of `floe gateway`'),
  job: slurmJobSchema.prefault({}),
});
export type NodeRole = z.infer<typeof nodeRoleSchema>;

const externalEngineSchema = z.strictObject({
  url: z
    .url({ protocol: /^https?$/ })
    .pipe(argumentSchema)
    .describe('base URL without /v1'),
  kind: engineKindNameSchema.default('vllm'),
  pool: idSchema.default('default'),
  model: argumentSchema.nullable().default(null),
});

const tlsSchema = z.strictObject({
  cert: tlsPathSchema('certificate chain of the server'),
  key: tlsPathSchema('private key of the server'),
  ca: pathSchema.describe('certificate authorities that nodes and clients trust'),
});

function tlsPathSchema(description: string): z.ZodString {
  return z
    .string()
    .regex(/^\/[A-Za-z0-9_.@+=/{}-]*$/, 'must be an absolute path')
    .describe(`${description}, in PEM; \`{host}\` is replaced by the host's name`);
}

/** Schema of `cluster.yaml`, which describes the deployment that `floe cluster slurm` starts. */
export const clusterConfigSchema = z
  .strictObject({
    name: nameSchema.describe('name of the cluster; node ids and job names begin with it'),
    shared: pathSchema.describe('directory on a file system that all hosts share; the run directory is below it'),
    scratch: pathSchema.default('/tmp').describe('directory on a local disk of each host'),
    host_name: z
      .string()
      .regex(/^[A-Za-z0-9.{}-]+$/, 'must be a host name, which may contain {hostname}')
      .default('{hostname}')
      .describe(
        'name by which other hosts reach a host; `{hostname}` is replaced by its own name, as in `{hostname}-ib0`',
      ),
    listen: z
      .string()
      .regex(/^[A-Za-z0-9.:-]+$/, 'must be an address')
      .default('0.0.0.0')
      .describe('address on which servers listen'),
    floe: z.array(argumentSchema).min(1).default(['floe']).describe('command that runs floe on every host'),
    setup: pathSchema
      .nullable()
      .default(null)
      .describe('shell file that each job sources first, for example to load modules'),
    harness_dir: pathSchema
      .nullable()
      .default(null)
      .describe('directory of installed harnesses; null for the cache in the home directory'),
    wait_seconds: z
      .int()
      .min(1)
      .max(86_400)
      .default(600)
      .describe('how long a job waits for another job that it depends on'),
    restarts: z
      .int()
      .min(0)
      .max(1000)
      .default(10)
      .describe('how often a job is requeued after its program exited unexpectedly'),
    slurm: slurmJobSchema.prefault({}).describe('options for all jobs; the options of a job take precedence'),
    server: z
      .strictObject({
        replicas: z.int().min(1).max(32).default(1),
        port: portSchema.default(8080).describe('port of the first replica; the others get the next numbers'),
        options: optionsSchema.describe('additional options of `floe server`'),
        job: slurmJobSchema.prefault({}),
      })
      .prefault({}),
    database: databaseSchema.prefault({ kind: 'postgres' }),
    blobs: argumentSchema
      .nullable()
      .default(null)
      .describe('directory or s3:// URL for results; null for a directory in the run directory'),
    nodes: z.array(nodeRoleSchema).min(1),
    engines: z.array(externalEngineSchema).default([]).describe('existing inference servers'),
    tls: tlsSchema.nullable().default(null).describe('TLS between the processes; null for plain HTTP'),
  })
  .superRefine((config, context) => {
    const refuse = (path: (string | number)[], message: string): void =>
      context.addIssue({ code: 'custom', path, message });
    if (config.database.kind === 'sqlite' && config.server.replicas > 1)
      refuse(['server', 'replicas'], 'SQLite supports one replica; use PostgreSQL for more');
    for (const [index, { name }] of config.nodes.entries()) {
      if (config.nodes.findIndex((other) => other.name === name) < index)
        refuse(['nodes', index, 'name'], `the role ${name} occurs more than once`);
      if (name === 'server' || name === 'database') refuse(['nodes', index, 'name'], `the name ${name} is reserved`);
    }
  });
export type ClusterConfig = z.infer<typeof clusterConfigSchema>;
export type ClusterConfigInput = z.input<typeof clusterConfigSchema>;

/** Returns the directory in which the jobs of a cluster publish their addresses for each other. Only its owner may read it. */
export function runDir(config: Pick<ClusterConfig, 'shared' | 'name'>): string {
  return `${config.shared.replace(/\/+$/, '')}/${config.name}`;
}

/** Returns the paths of the files and folders in a cluster's run directory. */
export function runPaths(config: ClusterConfig): {
  readonly token: string;
  readonly password: string;
  readonly jobs: string;
  readonly servers: string;
  readonly databaseUrl: string;
  readonly scripts: string;
  readonly folders: readonly string[];
} {
  const run = runDir(config);
  return {
    token: `${run}/token`,
    password: `${run}/database-password`,
    jobs: `${run}/jobs.json`,
    servers: `${run}/servers`,
    databaseUrl: `${run}/database-url`,
    scripts: `${run}/scripts`,
    folders: [run, `${run}/servers`, `${run}/logs`, `${run}/scripts`],
  };
}
