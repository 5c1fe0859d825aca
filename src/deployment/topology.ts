import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import {
  engineLocalitySchema,
  enginePolicySchema,
  engineSpecSchema,
  idSchema,
  runtimeBackendSchema,
} from '../schema/index.ts';
import { portSchema, wordSchema } from './words.ts';

const hostSchema = z
  .string()
  .regex(/^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$|^\[[0-9a-f:]+\]$/i, 'must be a host name or an address');

const listenerSchema = z.strictObject({
  host: wordSchema.default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(0),
});

const replicaSchema = z.strictObject({
  host: hostSchema.describe('where nodes and clients reach it'),
  port: portSchema.default(8080),
  listen: wordSchema.nullable().default(null).describe('address to listen on; null: `host`'),
});

const serverSchema = z.strictObject({
  replicas: z
    .array(replicaSchema)
    .min(1)
    .default([{ host: '127.0.0.1', port: 8080, listen: null }]),
  dir: wordSchema.nullable().default(null).describe('data of a replica that is embedded in it; null: in the floe home'),
  database: wordSchema
    .nullable()
    .default(null)
    .describe('URL of a PostgreSQL, without the password; null: an embedded database'),
  database_file: wordSchema.nullable().default(null).describe('file with that URL, password and all'),
  blobs: wordSchema.nullable().default(null).describe('directory or s3:// URL; null: in `dir`'),
  callback_hosts: z.array(wordSchema).nullable().default(null).describe('hosts that callbacks may go to'),
  callback_secret_file: wordSchema.nullable().default(null).describe('what callbacks are signed with'),
  tokens_file: wordSchema.nullable().default(null).describe('further tokens, each with its role'),
  builders: z.array(idSchema).default([]).describe('custom builders that the nodes have'),
});

const nodeSchema = z.strictObject({
  id: idSchema,
  host: hostSchema.nullable().default(null).describe('its machine, as engine addresses have it; null: found out'),
  runtime: runtimeBackendSchema.nullable().default(null).describe('default runtime; null: bubblewrap where it works'),
  pools: z
    .strictObject({
      init: z.int().min(1).max(10_000).optional(),
      ready: z.int().min(0).max(10_000).optional(),
      run: z.int().min(1).max(10_000).optional(),
      postrun: z.int().min(1).max(10_000).optional(),
    })
    .prefault({})
    .describe('workers of each stage; absent: by the number of cores'),
  engine_policy: enginePolicySchema.nullable().default(null),
  engine_locality: engineLocalitySchema.nullable().default(null),
  state_dir: wordSchema.nullable().default(null).describe('its own directory; null: in the floe home'),
  upload_roots: z.array(wordSchema).default([]).describe('host directories that prepare actions may read'),
  builders: z.record(idSchema, wordSchema).default({}).describe('modules of custom builders, by name'),
  allow_local: z.boolean().default(false).describe('tasks may ask for no isolation'),
  allow_host_network: z.boolean().default(false),
  proxy: listenerSchema.nullable().default(null),
  control: listenerSchema.nullable().default(null),
  drain_seconds: z
    .int()
    .min(0)
    .nullable()
    .default(null)
    .describe('how long sessions may finish when it is told to stop'),
});

/** `topology.yaml`: which processes there are and where, for machines that are known beforehand. Holds no secret. */
export const topologySchema = z
  .strictObject({
    server: serverSchema.prefault({}),
    token_file: wordSchema
      .nullable()
      .default(null)
      .describe('file with the control token; null: as without a topology'),
    config: wordSchema.nullable().default(null).describe('file of settings, of servers and nodes: configuration.md'),
    tls: z
      .strictObject({
        cert: wordSchema.describe('certificate chain of the servers'),
        key: wordSchema.describe('its private key'),
        ca: wordSchema.describe('authorities that nodes and clients trust'),
      })
      .nullable()
      .default(null)
      .describe('files in PEM; null: plain HTTP'),
    nodes: z.array(nodeSchema).default([]),
    engines: z
      .array(engineSpecSchema.omit({ api_key: true }))
      .default([])
      .describe('inference servers, registered by `floe topology apply`'),
  })
  .superRefine(({ server, nodes, engines }, context) => {
    const refuse = (path: (string | number)[], message: string): void =>
      context.addIssue({ code: 'custom', path, message });
    if (server.replicas.length > 1 && server.database === null && server.database_file === null)
      refuse(['server', 'database'], 'several replicas share a PostgreSQL');
    if (server.database !== null && server.database_file !== null)
      refuse(['server', 'database_file'], 'names the same as `database`: give one of them');
    const unique = (values: readonly string[], path: (index: number) => (string | number)[]): void => {
      for (const [index, value] of values.entries())
        if (values.indexOf(value) < index) refuse(path(index), `${value} is there already`);
    };
    unique(
      server.replicas.map(({ host, port }) => `${host}:${port}`),
      (index) => ['server', 'replicas', index],
    );
    unique(
      nodes.map((node) => node.id),
      (index) => ['nodes', index, 'id'],
    );
    unique(
      engines.map((engine) => engine.engine_id ?? engine.base_url),
      (index) => ['engines', index],
    );
  });
export type Topology = z.infer<typeof topologySchema>;

/** The replicas as clients and nodes take them: URLs with commas between. */
export function serverUrls({ server, tls }: Topology): string {
  return server.replicas.map(({ host, port }) => `${tls === null ? 'http' : 'https'}://${host}:${port}`).join(',');
}

/** What every client of the server is called with. */
export function clientArguments(topology: Topology): string[] {
  return [...option('token-file', topology.token_file), ...option('ca', topology.tls?.ca ?? null)];
}

/** Arguments of `floe server` for one replica, counted from 1. Throws `not_found`. */
export function serverArguments(topology: Topology, replica: number): string[] {
  const { server, tls, token_file } = topology;
  const own = server.replicas[replica - 1];
  if (own === undefined)
    throw new FloeError('not_found', `the topology has ${server.replicas.length} replicas; ${replica} is none of them`);
  return [
    `--host=${own.listen ?? own.host.replace(/^\[|\]$/g, '')}`,
    `--port=${own.port}`,
    ...option('config', topology.config),
    ...option('dir', server.dir),
    ...option('database', server.database),
    ...option('database-file', server.database_file),
    ...option('blobs', server.blobs),
    ...option('token-file', token_file),
    ...option('tokens-file', server.tokens_file),
    ...option('callback-secret-file', server.callback_secret_file),
    ...(server.callback_hosts ?? []).map((host) => `--callback-host=${host}`),
    ...option('tls-cert', tls?.cert ?? null),
    ...option('tls-key', tls?.key ?? null),
    ...server.builders.map((name) => `--builder=${name}`),
  ];
}

/** Arguments of `floe gateway` for one node. Throws `not_found`. */
export function gatewayArguments(topology: Topology, nodeId: string): string[] {
  const node = topology.nodes.find((other) => other.id === nodeId);
  if (node === undefined) {
    const known = topology.nodes.map((other) => other.id).join(', ') || 'none';
    throw new FloeError('not_found', `the topology has no node ${nodeId}; those it has: ${known}`, { node_id: nodeId });
  }
  return [
    `--server=${serverUrls(topology)}`,
    ...clientArguments(topology),
    ...option('config', topology.config),
    `--node-id=${node.id}`,
    ...option('node-host', node.host),
    ...option('backend', node.runtime),
    ...Object.entries(node.pools).map(([stage, size]) => `--${stage}=${size}`),
    ...option('engine-policy', node.engine_policy),
    ...option('engine-locality', node.engine_locality),
    ...option('state-dir', node.state_dir),
    ...node.upload_roots.map((root) => `--upload-root=${root}`),
    ...Object.entries(node.builders).map(([name, module]) => `--builder=${name}=${module}`),
    ...(node.allow_local ? ['--allow-local'] : []),
    ...(node.allow_host_network ? ['--allow-host-network'] : []),
    ...listener('proxy', node.proxy),
    ...listener('control', node.control),
    ...option('drain-seconds', node.drain_seconds),
  ];
}

function option(name: string, value: string | number | null): string[] {
  return value === null ? [] : [`--${name}=${value}`];
}

function listener(name: string, place: { host: string; port: number } | null): string[] {
  return place === null ? [] : [`--${name}-host=${place.host}`, `--${name}-port=${place.port}`];
}
