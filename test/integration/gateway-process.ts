import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { FloeClient } from '@floe-rl/client';
import { type AttemptView, attemptViewSchema, type SessionResult } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { type SimServer, startSim } from '@floe-rl/sim';
import { type RunningServer, startServer } from '#floe/up/stack';
import { processesOf } from './processes.ts';

const CLI = join(import.meta.dirname, '..', '..', 'packages', 'floe', 'dist', 'commands', 'main.js');

export type GatewayProcess = {
  readonly child: ChildProcess;
  readonly stateDir: string;
  /** Returns the text that the gateway has written to stdout and stderr so far. */
  output(): string;
  /**
   * Sends the signal, unless the process has already ended, and waits for the process to end. Resolves with the exit code; `null` when a
   * signal ended the process.
   */
  end(signal: NodeJS.Signals): Promise<number | null>;
};

type GatewayProcessOptions = {
  readonly server: string;
  readonly engine: string;
  readonly backend: 'local' | 'bubblewrap';
  readonly nodeId: string;
  readonly stateDir: string;
  /** Additional command-line arguments of `floe gateway`. */
  readonly args?: readonly string[];
};

/** Starts `floe gateway` as a separate process. Resolves when the gateway has registered its node with the server. */
async function startGatewayProcess(options: GatewayProcessOptions): Promise<GatewayProcess> {
  const { server, engine, backend, nodeId, stateDir } = options;
  const common = ['gateway', '--json', '--server', server, '--engine', engine, '--backend', backend];
  const own = ['--node-id', nodeId, '--state-dir', stateDir, '--log-level', 'silent', ...(options.args ?? [])];
  const child = spawn(process.execPath, [CLI, ...common, ...own], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, FLOE_HOME: `${stateDir}-home` },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
  }
  // The `close` event means that all output has been read. It does not occur while a suspended child process keeps the output pipe open.
  const closed = once(child, 'close');
  const exited = once(child, 'exit');
  const line = once(createInterface({ input: child.stdout }), 'line');
  const started = await Promise.race([line.then(() => true), closed.then(() => false)]);
  if (!started) throw new Error(`the gateway did not start: ${output}`);
  return {
    child,
    stateDir,
    output: () => output,
    async end(signal) {
      if (child.exitCode === null && child.signalCode === null) child.kill(signal);
      await (signal === 'SIGKILL' ? exited : closed);
      return child.exitCode;
    },
  };
}

/** A rollout server and a simulated engine in the test process, and gateways as separate processes. */
export class GatewayFleet {
  readonly dir: string;
  readonly sim: SimServer;
  readonly server: RunningServer;
  readonly client: FloeClient;
  readonly gateways: GatewayProcess[] = [];

  private constructor(dir: string, sim: SimServer, server: RunningServer) {
    this.dir = dir;
    this.sim = sim;
    this.server = server;
    this.client = new FloeClient({ url: server.url });
  }

  static async open(config: Partial<Parameters<typeof startServer>[1]>): Promise<GatewayFleet> {
    const dir = await mkdtemp(join(tmpdir(), 'floe-fleet-'));
    const sim = await startSim();
    const server = await startServer(
      join(dir, 'server'),
      {
        port: 0,
        sweep_seconds: 0.2,
        retry_backoff_seconds: 0.1,
        avoid_node_seconds: 0,
        max_node_losses: 10,
        ...config,
      },
      silentLogger,
    );
    return new GatewayFleet(dir, sim, server);
  }

  /** Starts a gateway process for the node `nodeId`. `stateDir` is the name of its state directory, by default the node's id. */
  async start(
    nodeId: string,
    backend: 'local' | 'bubblewrap',
    { stateDir = nodeId, args = [] }: { readonly stateDir?: string; readonly args?: readonly string[] } = {},
  ): Promise<GatewayProcess> {
    const gateway = await startGatewayProcess({
      server: this.server.url,
      engine: this.sim.url,
      backend,
      nodeId,
      stateDir: join(this.dir, stateDir),
      args,
    });
    this.gateways.push(gateway);
    return gateway;
  }

  async resultOf(session: string): Promise<SessionResult> {
    for await (const result of this.client.results()) if (result.session_id === session) return result;
    throw new Error('the results ended');
  }

  async close(): Promise<void> {
    await Promise.all(this.gateways.map((gateway) => gateway.end('SIGKILL')));
    await this.client.close();
    await this.server.close();
    await this.sim.close();
    await rm(this.dir, { recursive: true, force: true });
  }
}

/** Returns the pids of the helper processes that start sandboxes for the gateways of a state directory. */
export async function helpersOf(stateDir: string): Promise<number[]> {
  return processesOf(`FLOE_SANDBOX_LABEL=${await ownerOf(stateDir)}/`).filter(
    (pid) => pid !== process.pid && isHelper(pid),
  );
}

function isHelper(pid: number): boolean {
  return processesOf('spawn-helper.js').includes(pid);
}

async function ownerOf(stateDir: string): Promise<string> {
  return readFile(join(stateDir, 'owner-id'), 'latin1');
}

/**
 * Returns the remains of all sandboxes of a state directory: processes, control groups, mounts, directories and sockets that still exist.
 */
export async function leftOf(stateDir: string): Promise<string[]> {
  const owner = await ownerOf(stateDir);
  const helpers = await helpersOf(stateDir);
  const processes = processesOf(`FLOE_SANDBOX_LABEL=${owner}/`).filter((pid) => !helpers.includes(pid));
  const found = processes.map((pid) => `process ${pid}`);
  const mounts = await readFile('/proc/self/mounts', 'utf8');
  for (const mount of mounts.split('\n')) {
    const [, point = '', type = ''] = mount.split(' ');
    if (point.startsWith(stateDir)) found.push(`mount ${point}`);
    if (!type.startsWith('cgroup')) continue;
    for (const name of await readdir(point, { recursive: true }).catch(() => [])) {
      if (
        name.includes(`floe-${owner}-`) &&
        !name.includes('/floe-', 1) &&
        name.split('/').at(-1)?.startsWith('floe-')
      ) {
        found.push(`cgroup ${join(point, name)}`);
      }
    }
  }
  for (const dir of ['sockets', 'sessions']) {
    for (const name of await readdir(join(stateDir, dir)).catch(() => [])) {
      if (dir === 'sockets') found.push(`socket ${name}`);
      else for (const session of await readdir(join(stateDir, dir, name))) found.push(`directory ${name}/${session}`);
    }
  }
  return found.filter((entry) => !entry.endsWith('/.share'));
}

/** Returns the attempts of a session that gateways have delivered to the server. */
export async function attemptsOf(server: string, session: string): Promise<AttemptView[]> {
  const reply = await fetch(`${server}/sessions/${session}/attempts`);
  const { attempts } = (await reply.json()) as { attempts: unknown[] };
  return attempts.map((attempt) => attemptViewSchema.parse(attempt));
}

export type RecordedCompletion = { readonly completion_id: string; readonly response_ids: readonly number[] };

/** Returns the completions of one attempt that are stored on the server. */
export async function completionsOf(server: string, session: string, attempt: number): Promise<RecordedCompletion[]> {
  const reply = await fetch(`${server}/sessions/${session}/completions?attempt=${attempt}`);
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return (await reply.json()) as RecordedCompletion[];
}

/** Returns a shell command that makes `turns` model calls. Each call continues the previous call. */
export function conversation(turns: number): string {
  return `node -e '
    (async () => {
      const messages = [{ role: "user", content: "Hello." }];
      for (let turn = 0; turn < ${turns}; turn++) {
        const reply = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
          method: "POST",
          headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
          body: JSON.stringify({ model: "policy", messages }),
        });
        if (!reply.ok) process.exit(3);
        messages.push((await reply.json()).choices[0].message, { role: "user", content: "Go on, " + turn + "." });
      }
    })()'`;
}
