import { join } from 'node:path';
import type { Command } from 'commander';
import { undoAll } from '../core/promises.ts';
import { createLogger } from '../observe/log.ts';
import { loadScenarios, startSim } from '../sim/index.ts';
import { chooseBackend, isolationWarning } from './backend.ts';
import { type ConfigFileOptions, readSettings } from './config-file.ts';
import { DEFAULT_SERVER_PORT } from './connection.ts';
import { floeHome, harnessDir } from './home.ts';
import { takenOver, waitForSignal } from './lifetime.ts';
import { builderModules, type NodeOptions, nodeConfig, withNodeOptions } from './node-options.ts';
import { levelOption } from './options.ts';
import { json, line, note, paint } from './print.ts';
import { type ServerSecretOptions, serverSecrets, withSecretOptions } from './secrets.ts';
import { type StorageOptions, storageOf, withStorageOptions } from './server-options.ts';
import { startNode, startServer } from './stack.ts';

type Options = NodeOptions &
  ConfigFileOptions &
  ServerSecretOptions &
  StorageOptions & {
    host: string;
    port: string;
    dir?: string;
    sim?: boolean;
    scenario: string[];
    callbackHost?: string[];
    logLevel: string;
    json?: boolean;
  };

export function registerUp(program: Command): void {
  withNodeOptions(
    withSecretOptions(
      withStorageOptions(
        program
          .command('up')
          .description('rollout server and one node in one process')
          .option('--host <host>', 'address of the rollout server', '127.0.0.1')
          .option('--port <port>', 'port of the rollout server', String(DEFAULT_SERVER_PORT))
          .option('--dir <dir>', 'data (default: the floe home)')
          .option('--sim', 'start a simulated engine too')
          .option('--scenario <file...>', 'scenarios of the simulated engine', [])
          .option(
            '--callback-host <host...>',
            'hosts that callbacks may go to (default: loopback when listening there, else any other)',
          )
          .option('--log-level <level>', 'trace to fatal', 'info')
          .option('--json', 'machine-readable output'),
      ),
    ),
  ).action(up);
}

async function up(options: Options): Promise<void> {
  const home = options.dir ?? floeHome();
  const settings = await readSettings(options);
  const secrets = serverSecrets(options);
  const choice = options.backend === undefined ? await chooseBackend() : { backend: options.backend, problem: null };
  if (choice.problem !== null) note(paint('yellow', isolationWarning(choice.problem)));

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
    const address = { host: options.host, port: Number(options.port), callback_hosts: options.callbackHost ?? null };
    const modules = Object.entries(builderModules(options.builder)).flat();
    const server = await startServer(
      join(home, 'server'),
      { ...settings.server, ...address, ...secrets },
      log,
      modules,
      storageOf(options),
    );
    closers.push(() => server.close());
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
    if (options.json) json(info);
    else {
      line(`rollout server  ${paint('bold', info.server)}  (${tokenPlace(options)})`);
      line(`node            ${node.nodeId}, ${choice.backend}, control ${info.control}, proxy ${info.proxy}`);
      const none = 'none yet: `floe engines add <url of your vLLM or SGLang>`, or start with --sim';
      line(`engines         ${info.engines.join(' ') || none}`);
      line('submit a task:  floe submit <file> --watch');
    }
    const over = new AbortController();
    const displaced = await Promise.race([node.takenOver, waitForSignal(over.signal)]);
    over.abort();
    note('shutting down; unfinished sessions go back to the queue');
    if (displaced !== undefined) throw takenOver(displaced);
  } finally {
    await undoAll(closers);
  }
}

function tokenPlace({ tokenFile }: Options): string {
  if (tokenFile !== undefined) return `token in ${tokenFile}`;
  return process.env.FLOE_TOKEN ? 'token of $FLOE_TOKEN' : `token in ${join(floeHome(), 'control-token')}`;
}
