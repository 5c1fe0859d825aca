import { join } from 'node:path';
import { undoAll } from '@floe-rl/core';
import { createLogger } from '@floe-rl/observe';
import { raisePriority } from '@floe-rl/sandbox';
import { bundledTokenizerPath, loadScenarios, SIM_MODEL, startSim } from '@floe-rl/sim';
import type { Command } from 'commander';
import { startNode, startServer } from '../up/stack.ts';
import { chooseBackend, isolationWarning } from './backend.ts';
import { type ConfigFileOptions, readSettings, type Settings } from './config-file.ts';
import { DEFAULT_SERVER_PORT } from './connection.ts';
import { dashboardLink, openBrowser } from './dashboard-link.ts';
import { floeHome, harnessDir } from './home.ts';
import { displacedError, waitForSignal } from './lifetime.ts';
import { builderModules, type NodeOptions, nodeConfig, withNodeOptions } from './node-options.ts';
import { LOG_LEVELS, levelOption, listed } from './options.ts';
import { paint, printJson, printLine, printNote } from './print.ts';
import { type ServerSecretOptions, serverSecrets, withSecretOptions } from './secrets.ts';
import {
  type PolarOption,
  polarOf,
  type StorageOptions,
  storageOf,
  withPolarOption,
  withStorageOptions,
} from './server-options.ts';

type Options = NodeOptions &
  ConfigFileOptions &
  ServerSecretOptions &
  StorageOptions &
  PolarOption & {
    host: string;
    port: string;
    dir?: string;
    sim?: boolean;
    scenario: string[];
    callbackHost?: string[];
    logLevel: string;
    open?: boolean;
    json?: boolean;
  };

export function registerUp(program: Command): void {
  const command = withNodeOptions(
    withSecretOptions(
      withStorageOptions(
        program
          .command('up')
          .description('run a rollout server and a node in one process')
          .option('--host <host>', 'address of the rollout server', '127.0.0.1')
          .option('--port <port>', 'port of the rollout server', String(DEFAULT_SERVER_PORT))
          .option('--dir <dir>', 'data directory (default: the floe home)')
          .option('--sim', 'start a simulated engine as well')
          .option('--scenario <file...>', 'files with scenarios of the simulated engine', [])
          .option(
            '--callback-host <host...>',
            'hosts that callbacks may be sent to (default: loopback if the server listens there, else all others)',
          )
          .option('--log-level <level>', listed(LOG_LEVELS), 'info')
          .option('--open', 'open the dashboard in the browser')
          .option('--json', 'print JSON'),
      ),
    ),
  );
  withPolarOption(command).action(up);
}

async function up(options: Options): Promise<void> {
  const home = options.dir ?? floeHome();
  const settings = await readSettings(options);
  const secrets = serverSecrets(options);
  const choice = options.backend === undefined ? await chooseBackend() : { backend: options.backend, problem: null };
  if (choice.problem !== null) printNote(paint('yellow', isolationWarning(choice.problem)));

  const log = createLogger('floe', levelOption(options.logLevel));
  const closers: (() => Promise<unknown>)[] = [];
  try {
    if (options.sim === true) {
      const sim = await startSim({
        scenarios: await loadScenarios(options.scenario),
        face: options.engineKind === 'sglang' ? 'sglang' : 'vllm',
        scaleOut: true,
      });
      closers.push(() => sim.close());
      options.engine.push(sim.url);
    }
    const address = {
      host: options.host,
      port: Number(options.port),
      callback_hosts: options.callbackHost ?? null,
      ...polarOf(options),
    };
    const modules = Object.entries(builderModules(options.builder)).flat();
    const server = await startServer(
      join(home, 'server'),
      {
        ...settings.server,
        tokenizers: { ...(options.sim ? { [SIM_MODEL]: bundledTokenizerPath() } : {}), ...settings.server.tokenizers },
        ...address,
        ...secrets,
        evaluators: evaluatorNames(settings),
        plugins: pluginNames(settings),
        engine_kinds: engineKinds(settings),
      },
      log,
      modules,
      storageOf(options),
    );
    closers.push(() => server.close());
    raisePriority();
    const node = await startNode(
      nodeConfig(options, {
        ...settings.node,
        server_url: server.url,
        token: secrets.token,
        state_dir: join(home, 'gateway'),
        harness_dir: harnessDir(),
        backend: choice.backend,
      }),
      log,
    );
    closers.push(() => node.close());
    const info = { server: server.url, control: node.controlUrl, proxy: node.proxyOrigin, engines: options.engine };
    if (options.json) printJson(info);
    else {
      printLine(`rollout server  ${paint('bold', info.server)}  (${tokenSource(options)})`);
      printLine(`dashboard       ${dashboardLink(info.server)}`);
      const proxies = node.proxyOrigins.join(' ');
      printLine(`node            ${node.nodeId}, ${choice.backend}, control ${info.control}, proxy ${proxies}`);
      const none = 'none; add one with `floe engines add <URL of vLLM or SGLang>`, or start with --sim';
      printLine(`engines         ${info.engines.join(' ') || none}`);
      printLine('Submit a task with: floe submit <file> --watch');
    }
    if (options.open) openBrowser(dashboardLink(info.server, secrets.token));
    const over = new AbortController();
    const takeover = await Promise.race([node.takenOver, waitForSignal(over.signal)]);
    over.abort();
    printNote('Shutting down; unfinished sessions return to the queue.');
    if (takeover !== undefined) throw displacedError(takeover);
  } finally {
    await undoAll(closers);
  }
}

function tokenSource({ tokenFile }: Options): string {
  if (tokenFile !== undefined) return `token in ${tokenFile}`;
  return process.env.FLOE_TOKEN ? 'token in $FLOE_TOKEN' : `token in ${join(floeHome(), 'control-token')}`;
}

/** Returns the names of the custom evaluators of the node in this process, and of others that the config file names for the server. */
function evaluatorNames({ server, node }: Settings): string[] {
  return [...new Set([...server.evaluators, ...Object.keys(node.evaluators)])];
}

/** Returns the kinds of the engine modules of the node in this process, and others that the config file names for the server. */
function engineKinds({ server, node: { plugins } }: Settings): string[] {
  return [...new Set([...server.engine_kinds, ...Object.keys(plugins.engines)])];
}

/** Returns the names of the plug-ins of the node in this process, and of others that the config file names for the server. */
function pluginNames({ server, node: { plugins } }: Settings): string[] {
  const { agents, environments, tools, python } = plugins;
  const named = Object.entries(python).flatMap(([name, { kind }]) => (kind === 'handler' ? [] : [name]));
  const modules = [agents, environments, tools].flatMap((one) => Object.keys(one));
  return [...new Set([...server.plugins, ...modules, ...named])];
}
