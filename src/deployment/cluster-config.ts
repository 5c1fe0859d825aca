import { z } from 'zod';
import {
  engineKindSchema,
  engineLocalitySchema,
  idSchema,
  logprobsModeSchema,
  runtimeBackendSchema,
} from '../schema/index.ts';
import { slurmJobSchema } from './slurm-job.ts';
import { nameSchema, pathSchema, portSchema, wordSchema } from './words.ts';

const optionsSchema = z.array(wordSchema).default([]);

const databaseSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z
      .literal('sqlite')
      .describe('embedded in the one server; its file is in the run directory, on the shared file system: for trials'),
  }),
  z.strictObject({
    kind: z.literal('postgres').describe('a PostgreSQL of its own, run as a job'),
    port: portSchema.default(5432),
    bin: pathSchema.default('/usr/lib/postgresql/15/bin').describe('folder with `initdb` and `postgres`'),
    data: pathSchema
      .nullable()
      .default(null)
      .describe('folder of its data; null: beside the run directory. On a disk of one host, give `nodelist` too'),
    user: nameSchema
      .default('postgres')
      .describe('who it runs as where jobs run as root, which PostgreSQL refuses to be'),
    max_connections: z.int().min(10).default(200),
    job: slurmJobSchema.prefault({}),
  }),
  z.strictObject({
    kind: z.literal('external').describe('a PostgreSQL that runs already'),
    url_file: pathSchema.describe('file that holds its URL, readable by you alone'),
  }),
]);

/** An inference server that each node of a role starts beside itself. */
const nodeEngineSchema = z.strictObject({
  command: z
    .array(wordSchema)
    .min(1)
    .describe('program and arguments; `{port}`, `{host}` and `{node_id}` stand for what they are there'),
  kind: engineKindSchema.default('vllm'),
  pool: idSchema.default('default').describe('engines of one pool serve one policy'),
  model: wordSchema.nullable().default(null).describe("null: the server's first model"),
  logprobs_mode: logprobsModeSchema.nullable().default(null).describe('null: as the kind of server has it'),
  max_concurrency: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      "calls at a time; with more than that the node's sessions go to engines of other hosts. null: any number",
    ),
  port: portSchema.default(8000).describe('of the first; the next ones count on'),
  count: z.int().min(1).max(64).default(1).describe('so many on each node'),
  gpus: z
    .int()
    .min(1)
    .max(64)
    .nullable()
    .default(null)
    .describe("GPUs of each, taken in turn from the job's; null: each sees all of them"),
  health: z
    .string()
    .regex(/^\/[A-Za-z0-9_./-]*$/, 'must be a path')
    .default('/health')
    .describe('path that answers 200 once it is ready'),
  ready_seconds: z.int().min(1).max(86_400).default(1800).describe('loading a large model takes a while'),
});
export type NodeEngine = z.infer<typeof nodeEngineSchema>;

const nodeRoleSchema = z.strictObject({
  name: nameSchema,
  count: z.int().min(1).max(4096).default(1).describe('so many nodes, each a job of its own'),
  pools: z
    .strictObject({
      init: z.int().min(1).max(10_000).nullable().default(null),
      ready: z.int().min(0).max(10_000).nullable().default(null),
      run: z.int().min(1).max(10_000).nullable().default(null),
      postrun: z.int().min(1).max(10_000).nullable().default(null),
    })
    .prefault({})
    .describe('workers of each stage; null: by the number of cores'),
  backend: runtimeBackendSchema.nullable().default(null).describe('default runtime; null: bubblewrap where it works'),
  engine_locality: engineLocalitySchema
    .default('prefer_local')
    .describe("whether engines of a node's own host come first while they have capacity"),
  engines: z.array(nodeEngineSchema).default([]).describe('started with each node of this role'),
  options: optionsSchema.describe('further options of `floe gateway`'),
  job: slurmJobSchema.prefault({}),
});
export type NodeRole = z.infer<typeof nodeRoleSchema>;

const externalEngineSchema = z.strictObject({
  url: z
    .url({ protocol: /^https?$/ })
    .pipe(wordSchema)
    .describe('without /v1'),
  kind: engineKindSchema.default('vllm'),
  pool: idSchema.default('default'),
  model: wordSchema.nullable().default(null),
});

const tlsSchema = z.strictObject({
  cert: tlsPathSchema('certificate chain of the server'),
  key: tlsPathSchema('its private key'),
  ca: pathSchema.describe('authorities that everything else trusts'),
});

function tlsPathSchema(what: string): z.ZodString {
  return z
    .string()
    .regex(/^\/[A-Za-z0-9_.@+=/{}-]*$/, 'must be an absolute path')
    .describe(`${what}, in PEM; \`{host}\` stands for the host's name`);
}

/** `cluster.yaml`: what `floe cluster slurm` starts. */
export const clusterConfigSchema = z
  .strictObject({
    name: nameSchema.describe('of this cluster; ids of nodes and names of jobs begin with it'),
    shared: pathSchema.describe('directory that every host sees; the run directory is below it'),
    scratch: pathSchema.default('/tmp').describe('directory on a disk of each host'),
    host_name: z
      .string()
      .regex(/^[A-Za-z0-9.{}-]+$/, 'must be a host name, in which {hostname} may stand')
      .default('{hostname}')
      .describe('what the other hosts call a host; `{hostname}` stands for its own name, as in `{hostname}-ib0`'),
    listen: z
      .string()
      .regex(/^[A-Za-z0-9.:-]+$/, 'must be an address')
      .default('0.0.0.0')
      .describe('address that servers listen on'),
    floe: z.array(wordSchema).min(1).default(['floe']).describe('command that starts floe on every host'),
    setup: pathSchema
      .nullable()
      .default(null)
      .describe('shell file that each job reads first, to load modules for instance'),
    harness_dir: pathSchema
      .nullable()
      .default(null)
      .describe('where harnesses are installed; null: in the cache of your home'),
    wait_seconds: z.int().min(1).max(86_400).default(600).describe('how long a job waits for another that it needs'),
    restarts: z.int().min(0).max(1000).default(10).describe('how often a job whose program ended is queued again'),
    slurm: slurmJobSchema.prefault({}).describe('for every job; what a job says itself comes first'),
    server: z
      .strictObject({
        replicas: z.int().min(1).max(32).default(1),
        port: portSchema.default(8080).describe('of the first replica; the next ones count on'),
        options: optionsSchema.describe('further options of `floe server`'),
        job: slurmJobSchema.prefault({}),
      })
      .prefault({}),
    database: databaseSchema.prefault({ kind: 'postgres' }),
    blobs: wordSchema
      .nullable()
      .default(null)
      .describe('where results go: directory or s3:// URL; null: in the run directory'),
    nodes: z.array(nodeRoleSchema).min(1),
    engines: z.array(externalEngineSchema).default([]).describe('inference servers that run already'),
    tls: tlsSchema.nullable().default(null).describe('null: plain HTTP between the parts'),
  })
  .superRefine((config, context) => {
    const refuse = (path: (string | number)[], message: string): void =>
      context.addIssue({ code: 'custom', path, message });
    if (config.database.kind === 'sqlite' && config.server.replicas > 1)
      refuse(['server', 'replicas'], 'SQLite serves one replica; more need PostgreSQL');
    for (const [index, { name }] of config.nodes.entries()) {
      if (config.nodes.findIndex((other) => other.name === name) < index)
        refuse(['nodes', index, 'name'], `there is a role ${name} already`);
      if (name === 'server' || name === 'database') refuse(['nodes', index, 'name'], `${name} is taken`);
    }
  });
export type ClusterConfig = z.infer<typeof clusterConfigSchema>;
export type ClusterConfigInput = z.input<typeof clusterConfigSchema>;

/** The directory through which the parts of a cluster find each other; for its owner's eyes only. */
export function runDir(config: Pick<ClusterConfig, 'shared' | 'name'>): string {
  return `${config.shared.replace(/\/+$/, '')}/${config.name}`;
}
