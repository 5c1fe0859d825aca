import { cpus, hostname } from 'node:os';
import { FloeError } from '@floe-rl/core';
import {
  type EngineKind,
  type EngineLocality,
  type EnginePolicy,
  engineKindSchema,
  enginePolicySchema,
  logprobsModeSchema,
  nodeRegistrationSchema,
  type RuntimeBackend,
  runtimeBackendSchema,
} from '@floe-rl/core/schema';
import { type DispatchPolicy, type GatewayConfigInput, machineMemoryMb } from '@floe-rl/node';
import { DOCKER_SOCKET } from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { type Settings, withConfigOption } from './config-file.ts';
import { imageDir } from './home.ts';
import { countOption, explained, listed } from './options.ts';

export type NodeOptions = {
  engine: string[];
  engineKind: EngineKind;
  enginePolicy: EnginePolicy;
  engineLocality: EngineLocality;
  nodeHost?: string;
  rack?: string;
  zone?: string;
  model?: string;
  nodeId?: string;
  backend?: RuntimeBackend;
  init?: string;
  ready?: string;
  run?: string;
  postrun?: string;
  processes: string;
  memoryMb?: string;
  dispatch: DispatchPolicy;
  startLimit: string[];
  startRate: string[];
  uploadRoot: string[];
  builder: string[];
  dockerSocket: string;
  podmanSocket?: string;
  apptainerCommand: string;
  allowHostNetwork?: boolean;
  allowLocal?: boolean;
  logprobsMode: 'raw' | 'processed';
  proxyHost: string;
  proxyPort: string;
  controlHost: string;
  controlPort: string;
};

/** Adds the options of a node, which `floe up` and `floe gateway` share. */
export function withNodeOptions(command: Command): Command {
  return withConfigOption(command)
    .option('--engine <url...>', 'URLs of inference servers, without /v1; `floe engines add` adds more later', [])
    .option('--engine-kind <kind>', `API of the inference servers: ${listed(engineKindSchema.options)}`, 'vllm')
    .option(
      '--engine-policy <name>',
      `how an engine is chosen for a call: ${listed(enginePolicySchema.options)}`,
      'least_in_flight',
    )
    .option(
      '--engine-locality <choice>',
      explained<EngineLocality>({
        prefer_local: 'prefer engines on this host, then in its rack, then in its zone, while they have capacity',
        none: 'prefer none',
      }),
      'none',
    )
    .option('--rack <name>', 'rack of this machine, to decide which engines are near')
    .option('--zone <name>', 'zone of this machine, to decide which engines are near')
    .option('--model <name>', "name of the engines' model (default: the first one that each serves)")
    .option('--node-id <id>', 'id of this node (default: the host name)')
    .option(
      '--node-host <name>',
      'name of this machine in engine URLs (default: the address from which it reaches the server)',
    )
    .option(
      '--backend <name>',
      `default runtime: ${listed(runtimeBackendSchema.options)} (default: bubblewrap if it works)`,
    )
    .option('--docker-socket <path>', 'Unix socket of the Docker daemon', DOCKER_SOCKET)
    .option('--podman-socket <path>', 'Unix socket of the Podman service (default: the one of this user)')
    .option('--apptainer-command <program>', 'program Apptainer, a path or a name', 'apptainer')
    .option('--init <n>', 'number of INIT workers (default: twice the number of cores)')
    .option('--ready <n>', 'size of the READY buffer (default: the number of cores)')
    .option('--run <n>', 'number of RUN workers (default: four times the number of cores)')
    .option('--postrun <n>', 'number of POSTRUN workers (default: twice the number of cores)')
    .option('--processes <n>', 'number of processes that run the sessions of the node, at most one for each core', '1')
    .option(
      '--memory-mb <n>',
      'memory for sessions in MiB, which the sum of their memory limits never exceeds (default: the memory of the machine or control group)',
    )
    .option(
      '--dispatch <policy>',
      `how the stages of sessions overlap: ${listed(nodeRegistrationSchema.shape.dispatch_policy.unwrap().options)}`,
      'pipeline',
    )
    .option('--start-limit <backend=n...>', 'maximum number of sandboxes of a runtime that start concurrently', [])
    .option('--start-rate <backend=n...>', 'maximum number of sandboxes of a runtime that start per second', [])
    .option('--upload-root <dir...>', 'host directories that prepare actions may copy from', [])
    .option('--builder <name=module...>', 'custom builders: see docs/guides/write-a-builder.md', [])
    .option(
      '--logprobs-mode <mode>',
      `kind of log-probabilities that the engines return: ${listed(logprobsModeSchema.options)}`,
      'processed',
    )
    .option('--allow-local', 'allow tasks to run without isolation')
    .option('--allow-host-network', 'allow tasks to use the network of the host')
    .option('--proxy-host <host>', 'address of the proxy listener', '127.0.0.1')
    .option('--proxy-port <port>', 'port of the proxy listener; 0 chooses a free one', '0')
    .option('--control-host <host>', 'address of the control listener', '127.0.0.1')
    .option('--control-port <port>', 'port of the control listener; 0 chooses a free one', '0');
}

/** The settings of a node that do not come from its command-line options, but from the config file and the caller. */
type OtherSettings = Settings['node'] &
  Pick<GatewayConfigInput, 'server_url' | 'server_tls' | 'control_tls' | 'token' | 'state_dir' | 'harness_dir'> & {
    backend: RuntimeBackend;
  };

/** Builds the configuration of a node from its command-line options and the settings in `other`. */
export function nodeConfig(options: NodeOptions, other: OtherSettings): GatewayConfigInput {
  const cores = cpus().length;
  const { backend, images, ...connection } = other;
  return {
    ...connection,
    node_id: options.nodeId ?? defaultNodeId(),
    processes: countOption('--processes', options.processes),
    pools: {
      init: Number(options.init ?? 2 * cores),
      ready: Number(options.ready ?? cores),
      // By default there are four agents per core, because an agent waits for the engine most of the time.
      run: Number(options.run ?? 4 * cores),
      postrun: Number(options.postrun ?? 2 * cores),
    },
    dispatch_policy: options.dispatch,
    memory_mb: Number(options.memoryMb ?? machineMemoryMb()),
    start_limits: startLimits('--start-limit', options.startLimit),
    start_rates: startLimits('--start-rate', options.startRate),
    engines: options.engine.map((base_url) => ({
      base_url,
      kind: options.engineKind,
      model: options.model ?? null,
      logprobs_mode: options.logprobsMode,
    })),
    engine_policy: options.enginePolicy,
    engine_locality: options.engineLocality,
    place: { rack: options.rack ?? null, zone: options.zone ?? null },
    host: options.nodeHost ?? null,
    default_backend: backend,
    docker_socket: options.dockerSocket,
    images: { ...images, dir: images.dir ?? imageDir() },
    podman_socket: options.podmanSocket ?? null,
    apptainer_command: options.apptainerCommand,
    upload_roots: options.uploadRoot,
    builders: builderModules(options.builder),
    allow_local: options.allowLocal === true,
    allow_host_network: options.allowHostNetwork === true,
    proxy: { host: options.proxyHost, port: Number(options.proxyPort) },
    control: { host: options.controlHost, port: Number(options.controlPort) },
  };
}

/**
 * Parses the `--builder` options. Returns the path of each trace builder's module by the builder's name. Throws `bad_request` for an option
 * that is not `name=module`.
 */
export function builderModules(options: readonly string[]): Record<string, string> {
  const entries = options.map((option): [string, string] => {
    const [name = '', ...path] = option.split('=');
    if (name === '' || path.length === 0) throw new FloeError('bad_request', `--builder: ${option} is not name=module`);
    return [name, path.join('=')];
  });
  return Object.fromEntries(entries);
}

/** Parses the values of an option. Returns the limits by runtime, which the schema of the configuration validates later. */
function startLimits(name: string, options: readonly string[]): Record<string, number> {
  return Object.fromEntries(
    options.map((option): [string, number] => {
      const [backend = '', count = ''] = option.split('=');
      if (backend === '' || count === '') throw new FloeError('bad_request', `${name}: ${option} is not backend=n`);
      return [backend, Number(count)];
    }),
  );
}

/** Derives a node id from the host name. Characters that are not allowed in ids become hyphens. */
function defaultNodeId(): string {
  return hostname().replaceAll(/[^A-Za-z0-9._-]/g, '-') || 'node';
}
