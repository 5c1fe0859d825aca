import { cpus, hostname } from 'node:os';
import type { Command } from 'commander';
import { FloeError } from '../core/errors.ts';
import type { GatewayConfigInput } from '../gateway/node/config.ts';
import type { DispatchPolicy } from '../gateway/node/stage-pools.ts';
import type { EngineKind, EngineLocality, EnginePolicy, RuntimeBackend } from '../schema/index.ts';
import { type Settings, withConfigOption } from './config-file.ts';

export type NodeOptions = {
  engine: string[];
  engineKind: EngineKind;
  enginePolicy: EnginePolicy;
  engineLocality: EngineLocality;
  nodeHost?: string;
  model?: string;
  nodeId?: string;
  backend?: RuntimeBackend;
  init?: string;
  ready?: string;
  run?: string;
  postrun?: string;
  dispatch: DispatchPolicy;
  startLimit: string[];
  uploadRoot: string[];
  builder: string[];
  allowHostNetwork?: boolean;
  allowLocal?: boolean;
  logprobsMode: 'raw' | 'processed';
  proxyHost: string;
  proxyPort: string;
  controlHost: string;
  controlPort: string;
};

/** The options of a node, shared by `floe up` and `floe gateway`. */
export function withNodeOptions(command: Command): Command {
  return withConfigOption(command)
    .option('--engine <url...>', 'inference servers, without /v1; more can be added later with `floe engines add`', [])
    .option('--engine-kind <kind>', 'their API: vllm, sglang, llama_cpp or openai', 'vllm')
    .option(
      '--engine-policy <name>',
      'which engine a call goes to: least_in_flight, assignment_count or consistent_hash',
      'least_in_flight',
    )
    .option(
      '--engine-locality <choice>',
      'prefer_local: engines of this host first, while they have capacity; or none',
      'none',
    )
    .option('--model <name>', "the engines' model (default: the first that each serves)")
    .option('--node-id <id>', 'name of this node (default: the host name)')
    .option(
      '--node-host <name>',
      'this machine, as engine addresses have it (default: the address that reaches the server)',
    )
    .option('--backend <name>', 'default runtime: bubblewrap or local (default: bubblewrap where it works)')
    .option('--init <n>', 'INIT workers (default: twice the cores)')
    .option('--ready <n>', 'places in the READY buffer (default: the cores)')
    .option('--run <n>', 'RUN workers (default: four times the cores)')
    .option('--postrun <n>', 'POSTRUN workers (default: twice the cores)')
    .option('--dispatch <policy>', 'how sessions overlap: pipeline, batch or bounded_batch', 'pipeline')
    .option('--start-limit <backend=n...>', 'sandboxes of a runtime that may be starting at a time', [])
    .option('--upload-root <dir...>', 'host directories that prepare actions may read', [])
    .option('--builder <name=module...>', 'custom builders: docs/guides/write-a-builder.md', [])
    .option('--logprobs-mode <mode>', 'what the engines’ log-probabilities mean: raw or processed', 'processed')
    .option('--allow-local', 'let tasks ask for no isolation')
    .option('--allow-host-network', 'let tasks ask for the host’s network')
    .option('--proxy-host <host>', 'address of the proxy listener', '127.0.0.1')
    .option('--proxy-port <port>', '0 picks a free one', '0')
    .option('--control-host <host>', 'address of the node’s control listener', '127.0.0.1')
    .option('--control-port <port>', '0 picks a free one', '0');
}

type Rest = Settings['node'] &
  Pick<GatewayConfigInput, 'server_url' | 'server_tls' | 'control_tls' | 'token' | 'state_dir' | 'harness_dir'> & {
    backend: RuntimeBackend;
  };

export function nodeConfig(options: NodeOptions, rest: Rest): GatewayConfigInput {
  const cores = cpus().length;
  const { backend, ...connection } = rest;
  return {
    ...connection,
    node_id: options.nodeId ?? defaultNodeId(),
    pools: {
      init: Number(options.init ?? 2 * cores),
      ready: Number(options.ready ?? cores),
      // An agent waits for the engine most of its time, so a core carries several.
      run: Number(options.run ?? 4 * cores),
      postrun: Number(options.postrun ?? 2 * cores),
    },
    dispatch_policy: options.dispatch,
    start_limits: startLimits(options.startLimit),
    engines: options.engine.map((base_url) => ({
      base_url,
      kind: options.engineKind,
      model: options.model ?? null,
      logprobs_mode: options.logprobsMode,
    })),
    engine_policy: options.enginePolicy,
    engine_locality: options.engineLocality,
    host: options.nodeHost ?? null,
    default_backend: backend,
    upload_roots: options.uploadRoot,
    builders: builderModules(options.builder),
    allow_local: options.allowLocal === true,
    allow_host_network: options.allowHostNetwork === true,
    proxy: { host: options.proxyHost, port: Number(options.proxyPort) },
    control: { host: options.controlHost, port: Number(options.controlPort) },
  };
}

/** Module paths by name, as `--builder` gives them. Throws `bad_request` for an option that is not `name=module`. */
export function builderModules(options: readonly string[]): Record<string, string> {
  const entries = options.map((option): [string, string] => {
    const [name = '', ...path] = option.split('=');
    if (name === '' || path.length === 0) throw new FloeError('bad_request', `--builder ${option}: not name=module`);
    return [name, path.join('=')];
  });
  return Object.fromEntries(entries);
}

/** Limits by back end, as `--start-limit` gives them; what they must be is checked with the rest of the configuration. */
function startLimits(options: readonly string[]): Record<string, number> {
  return Object.fromEntries(
    options.map((option): [string, number] => {
      const [backend = '', count = ''] = option.split('=');
      if (backend === '' || count === '') throw new FloeError('bad_request', `--start-limit ${option}: not backend=n`);
      return [backend, Number(count)];
    }),
  );
}

/** Host names may hold characters that ids may not. */
function defaultNodeId(): string {
  return hostname().replaceAll(/[^A-Za-z0-9._-]/g, '-') || 'node';
}
