import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { type AttemptView, attemptViewSchema } from '../../src/schema/index.ts';
import { processesOf } from './processes.ts';

const CLI = join(import.meta.dirname, '..', '..', 'dist', 'cli', 'main.js');

export type GatewayProcess = {
  readonly child: ChildProcess;
  readonly stateDir: string;
  /** What it has written so far, to either stream. */
  output(): string;
  /** Ends with the signal; resolves with the exit code, null after a signal. */
  end(signal: NodeJS.Signals): Promise<number | null>;
};

export type GatewayProcessOptions = {
  readonly server: string;
  readonly engine: string;
  readonly backend: 'local' | 'bubblewrap';
  readonly nodeId: string;
  /** Also the home of harnesses and tokens. */
  readonly stateDir: string;
  readonly more?: readonly string[];
};

/** `floe gateway` as a process of its own, registered when this resolves. */
export async function startGatewayProcess(options: GatewayProcessOptions): Promise<GatewayProcess> {
  const { server, engine, backend, nodeId, stateDir, more = [] } = options;
  const args = ['gateway', '--json', '--server', server, '--engine', engine, '--backend', backend];
  const own = ['--node-id', nodeId, '--state-dir', stateDir, '--log-level', 'silent', ...more];
  const child = spawn(process.execPath, [CLI, ...args, ...own], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, FLOE_HOME: `${stateDir}-home` },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
  }
  // With `close` everything that it wrote has been read; a spawn helper that was stopped holds that up.
  const exited = once(child, 'close');
  const gone = once(child, 'exit');
  const line = once(createInterface({ input: child.stdout }), 'line');
  const started = await Promise.race([line.then(() => true), exited.then(() => false)]);
  if (!started) throw new Error(`the gateway did not start: ${output}`);
  return {
    child,
    stateDir,
    output: () => output,
    async end(signal) {
      if (child.exitCode === null && child.signalCode === null) child.kill(signal);
      await (signal === 'SIGKILL' ? gone : exited);
      return child.exitCode;
    },
  };
}

/** Pids of the spawn helpers of a state directory's gateways. */
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

/** Whatever is there of the sandboxes of a state directory: processes, control groups, mounts, directories, sockets. */
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

/** What nodes have told the server of the attempts at a session. */
export async function attemptsOf(server: string, session: string): Promise<AttemptView[]> {
  const reply = await fetch(`${server}/sessions/${session}/attempts`);
  const { attempts } = (await reply.json()) as { attempts: unknown[] };
  return attempts.map((attempt) => attemptViewSchema.parse(attempt));
}

export type RecordedCompletion = { readonly completion_id: string; readonly response_ids: readonly number[] };

/** The completions that the server keeps of one attempt. */
export async function completionsOf(server: string, session: string, attempt: number): Promise<RecordedCompletion[]> {
  const reply = await fetch(`${server}/sessions/${session}/completions?attempt=${attempt}`);
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return (await reply.json()) as RecordedCompletion[];
}

/** A shell command that talks to its model: `turns` calls, each of which goes on from the one before. */
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
