import { FloeError } from '@floe-rl/core';
import {
  engineLocalitySchema,
  enginePolicySchema,
  engineSpecSchema,
  idSchema,
  runtimeBackendSchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { argumentSchema, portSchema } from './shell-arguments.ts';

const hostSchema = z
  .string()
  .regex(/^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$|^\[[0-9a-f:]+\]$/i, 'must be a host name or an address');

const listenerSchema = z.strictObject({
  host: argumentSchema.default('127.0.0.1'),
  port: z.int().min(0).max(65_535).default(0),
});

const replicaSchema = z.strictObject({
  host: hostSchema.describe('host name or address at which nodes and clients reach it'),
  port: portSchema.default(8080),
  listen: argumentSchema.nullable().default(null).describe('address to listen on; null for `host`'),
});

const serverSchema = z.strictObject({
  replicas: z
    .array(replicaSchema)
    .min(1)
    .default([{ host: '127.0.0.1', port: 8080, listen: null }]),
  dir: argumentSchema
    .nullable()
    .default(null)
    .describe('directory for the data of a replica; null for one in the floe home'),
  database: argumentSchema
    .nullable()
    .default(null)
    .describe('URL of a PostgreSQL without the password; null for an embedded database'),
  database_file: argumentSchema.nullable().default(null).describe('file with that URL including the password'),
  blobs: argumentSchema
    .nullable()
    .default(null)
    .describe('directory or s3:// URL for results; null for a directory in `dir`'),
  callback_hosts: z.array(argumentSchema).nullable().default(null).describe('hosts to which callbacks may be sent'),
  callback_secret_file: argumentSchema.nullable().default(null).describe('file with the secret that signs callbacks'),
  tokens_file: argumentSchema.nullable().default(null).describe('file with additional tokens, each with its role'),
  builders: z.array(idSchema).default([]).describe('names of the custom builders that the nodes have'),
});

const nodeSchema = z.strictObject({
  id: idSchema,
  host: hostSchema
    .nullable()
    .default(null)
    .describe('its machine, as it is named in engine addresses; null to detect it'),
  runtime: runtimeBackendSchema
    .nullable()
    .default(null)
    .describe('default runtime; null for bubblewrap where it works'),
  docker_socket: argumentSchema.nullable().default(null).describe('Unix socket of the Docker daemon'),
  podman_socket: argumentSchema.nullable().default(null).describe('Unix socket of the Podman service'),
  apptainer_command: argumentSchema.nullable().default(null).describe('program Apptainer, a path or a name'),
  processes: z.int().min(1).max(256).optional().describe('number of processes that run the sessions of the node'),
  pools: z
    .strictObject({
      init: z.int().min(1).max(10_000).optional(),
      ready: z.int().min(0).max(10_000).optional(),
      run: z.int().min(1).max(10_000).optional(),
      postrun: z.int().min(1).max(10_000).optional(),
    })
    .prefault({})
    .describe('number of workers of each stage; by default derived from the number of cores'),
  engine_policy: enginePolicySchema.nullable().default(null),
  engine_locality: engineLocalitySchema.nullable().default(null),
  rack: argumentSchema.nullable().default(null).describe('rack of the machine'),
  zone: argumentSchema.nullable().default(null).describe('zone of the machine'),
  state_dir: argumentSchema.nullable().default(null).describe('directory for its state; null for one in the floe home'),
  upload_roots: z.array(argumentSchema).default([]).describe('host directories that prepare actions may read'),
  builders: z.record(idSchema, argumentSchema).default({}).describe('modules of custom builders, keyed by name'),
  allow_local: z.boolean().default(false).describe('whether tasks may request no isolation'),
  allow_host_network: z.boolean().default(false),
  proxy: listenerSchema.nullable().default(null),
  control: listenerSchema.nullable().default(null),
  drain_seconds: z
    .int()
    .min(0)
    .nullable()
    .default(null)
    .describe('how long running sessions may continue after a request to stop'),
});

/**
 * Schema of `topology.yaml`, which lists the processes of a deployment and their hosts, for machines that are known in advance. It contains
 * no secrets.
 */
export const topologySchema = z
  .strictObject({
    server: serverSchema.prefault({}),
    token_file: argumentSchema
      .nullable()
      .default(null)
      .describe('file with the control token; null for the same default as without a topology'),
    config: argumentSchema
      .nullable()
      .default(null)
      .describe('configuration file of servers and nodes: configuration.md'),
    tls: z
      .strictObject({
        cert: argumentSchema.describe('certificate chain of the servers'),
        key: argumentSchema.describe('private key of the servers'),
        ca: argumentSchema.describe('certificate authorities that nodes and clients trust'),
      })
      .nullable()
      .default(null)
      .describe('PEM files; null for plain HTTP'),
    nodes: z.array(nodeSchema).default([]),
    engines: z
      .array(engineSpecSchema.omit({ api_key: true }))
      .default([])
      .describe('inference servers that `floe topology apply` registers'),
  })
  .superRefine(({ server, nodes, engines }, context) => {
    const refuse = (path: (string | number)[], message: string): void =>
      context.addIssue({ code: 'custom', path, message });
    if (server.replicas.length > 1 && server.database === null && server.database_file === null)
      refuse(['server', 'database'], 'more than one replica needs a PostgreSQL database');
    if (server.database !== null && server.database_file !== null)
      refuse(['server', 'database_file'], 'is an alternative to `database`: set only one of them');
    const unique = (values: readonly string[], path: (index: number) => (string | number)[]): void => {
      for (const [index, value] of values.entries())
        if (values.indexOf(value) < index) refuse(path(index), `${value} occurs more than once`);
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

/** Returns the URLs of the server replicas, separated by commas, as clients and nodes accept them. */
export function serverUrls({ server, tls }: Topology): string {
  return server.replicas.map(({ host, port }) => `${tls === null ? 'http' : 'https'}://${host}:${port}`).join(',');
}

/** Returns the command-line arguments that every client of the server needs. */
function clientArguments(topology: Topology): string[] {
  return [...option('token-file', topology.token_file), ...option('ca', topology.tls?.ca ?? null)];
}

/**
 * Returns the arguments of `floe server` for one replica, counted from 1. Throws `not_found` for a replica that the topology does not have.
 */
export function serverArguments(topology: Topology, replica: number): string[] {
  const { server, tls, token_file } = topology;
  const address = server.replicas[replica - 1];
  if (address === undefined)
    throw new FloeError(
      'not_found',
      `the topology has ${server.replicas.length} replicas; there is no replica ${replica}`,
    );
  return [
    `--host=${address.listen ?? address.host.replace(/^\[|\]$/g, '')}`,
    `--port=${address.port}`,
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

/** Returns the arguments of `floe gateway` for one node. Throws `not_found` for a node that the topology does not have. */
export function gatewayArguments(topology: Topology, nodeId: string): string[] {
  const node = topology.nodes.find((other) => other.id === nodeId);
  if (node === undefined) {
    const nodeIds = topology.nodes.map((other) => other.id).join(', ') || 'none';
    throw new FloeError('not_found', `the topology has no node ${nodeId}; its nodes: ${nodeIds}`, { node_id: nodeId });
  }
  return [
    `--server=${serverUrls(topology)}`,
    ...clientArguments(topology),
    ...option('config', topology.config),
    `--node-id=${node.id}`,
    ...option('node-host', node.host),
    ...option('backend', node.runtime),
    ...option('docker-socket', node.docker_socket),
    ...option('podman-socket', node.podman_socket),
    ...option('apptainer-command', node.apptainer_command),
    ...option('processes', node.processes ?? null),
    ...Object.entries(node.pools).map(([stage, size]) => `--${stage}=${size}`),
    ...option('engine-policy', node.engine_policy),
    ...option('engine-locality', node.engine_locality),
    ...option('rack', node.rack),
    ...option('zone', node.zone),
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

function listener(name: string, address: { host: string; port: number } | null): string[] {
  return address === null ? [] : [`--${name}-host=${address.host}`, `--${name}-port=${address.port}`];
}
