import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { sleep, systemClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeSpecSchema } from '@floe-rl/core/schema';
import { createRuntimeProviders, createSpawner } from '@floe-rl/sandbox';
import { percentile } from '../report.ts';

const run = promisify(execFile);
const never = new AbortController().signal;
/** Pauses of a session between two commands in milliseconds: from the minimum to twice the mean less the minimum. */
const MIN_PAUSE_MS = 500;
const PAUSE_RANGE_MS = 1_000;
/** Interval in milliseconds at which the screen of tmux is read. */
const SCREEN_POLL_MS = 5;
/** Sessions that are opened at the same time, because the start of a sandbox is work for the processor. */
const OPENED_AT_ONCE = 8;
const COMMAND = 'echo hello $((1+1))';

export type ShellLatencies = {
  readonly backend: RuntimeBackend;
  readonly floeMs: readonly number[];
  /** Empty when tmux is not installed. */
  readonly tmuxMs: readonly number[];
};

type Session = { readonly command: () => Promise<void> };

/**
 * Measures the time from sending a command to a shell until its output has arrived. The shell keeps its state. `count` sessions at once pause
 * about a second between commands, as agents do. Alternates `rounds` times between floe's tools, each in a sandbox of its own, and windows of
 * tmux without a sandbox.
 */
export async function measureShells(count: number, rounds: number, commandsPerRound: number): Promise<ShellLatencies> {
  const floe = await openFloe(count);
  const tmux = await openTmux(count);
  const [floeMs, tmuxMs]: [number[], number[]] = [[], []];
  try {
    for (let round = 0; round < rounds; round += 1) {
      floeMs.push(...(await latencies(floe.sessions, commandsPerRound)));
      tmuxMs.push(...(await latencies(tmux.sessions, commandsPerRound)));
    }
    return { backend: floe.backend, floeMs, tmuxMs };
  } finally {
    await Promise.all([floe.close(), tmux.close()]);
  }
}

/** Returns the median latency of floe's shells, and the median latency of tmux divided by it; `null` without tmux. */
export function shellKeys({ floeMs, tmuxMs }: ShellLatencies): {
  readonly shell_p50_ms: number;
  readonly shell_over_tmux: number | null;
} {
  const own = percentile(floeMs, 0.5) ?? Number.NaN;
  const other = percentile(tmuxMs, 0.5);
  return { shell_p50_ms: own, shell_over_tmux: other === null ? null : other / own };
}

async function latencies(sessions: readonly Session[], commandCount: number): Promise<number[]> {
  const all = await Promise.all(
    sessions.map(async ({ command }, index) => {
      const measured: number[] = [];
      for (let turn = 0; turn < commandCount; turn += 1) {
        // The pauses differ between sessions and turns, so that the commands are spread evenly.
        await sleep(systemClock, MIN_PAUSE_MS + ((index * 619 + turn * 271) % PAUSE_RANGE_MS));
        const startedMs = systemClock.monotonicMs();
        await command();
        measured.push(systemClock.monotonicMs() - startedMs);
      }
      return measured;
    }),
  );
  return all.flat();
}

async function openFloe(
  count: number,
): Promise<{ backend: RuntimeBackend; sessions: Session[]; close: () => Promise<void> }> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const spawner = await createSpawner();
  const providers = createRuntimeProviders({ spawner, clock: systemClock, stateDir: join(dir, 'state') });
  const bubblewrap = await providers.get('bubblewrap')?.probe();
  const backend = bubblewrap === null ? 'bubblewrap' : 'local';
  const provider = providers.get(backend);
  if (provider === undefined) throw new Error(`there is no back end ${backend}`);
  const sessions: Session[] = [];
  const stops: (() => Promise<void>)[] = [];
  const spec = runtimeSpecSchema.parse({ backend, memory_mb: 256, storage_mb: 16 });
  const open = async (name: string): Promise<void> => {
    const runtime = await provider.start({ name, spec, proxy: null, readOnlyMounts: [] }, never);
    stops.push(() => runtime.stop());
    const shell = (await runtime.openTools(never)).shell();
    const command = async (): Promise<void> => {
      const { stdout } = await shell.run(COMMAND, { timeoutMs: 60_000 }, never);
      if (stdout !== 'hello 2\n') throw new Error(`a shell of floe printed ${JSON.stringify(stdout)}`);
    };
    await command();
    sessions.push({ command });
  };
  const close = async (): Promise<void> => {
    await Promise.all(stops.map((stop) => stop()));
    await spawner.close();
    await rm(dir, { recursive: true, force: true });
  };
  try {
    for (let index = 0; index < count; index += OPENED_AT_ONCE) {
      const names = Array.from({ length: Math.min(OPENED_AT_ONCE, count - index) }, (_, at) => `b${index + at}`);
      await Promise.all(names.map(open));
    }
  } catch (error) {
    await close();
    throw error;
  }
  return { backend, sessions, close };
}

/** Opens sessions of one tmux server. A command is typed with `send-keys`, and the screen is read until the output is there. */
async function openTmux(count: number): Promise<{ sessions: Session[]; close: () => Promise<void> }> {
  const socket = `floe-bench-${randomBytes(6).toString('hex')}`;
  const tmux = async (...args: string[]): Promise<string> => (await run('tmux', ['-L', socket, ...args])).stdout;
  const sessions: Session[] = [];
  try {
    for (let index = 0; index < count; index += 1) {
      const name = `s${index}`;
      await tmux('-f', '/dev/null', 'new-session', '-d', '-s', name, 'bash', '--norc', '--noprofile');
      let turn = 0;
      const command = async (): Promise<void> => {
        turn += 1;
        // The quotes keep the typed line from looking like the output that marks its end.
        await tmux('send-keys', '-t', name, `${COMMAND}; echo "end"-${turn}-`, 'Enter');
        while (!(await tmux('capture-pane', '-p', '-t', name)).includes(`end-${turn}-`)) {
          await sleep(systemClock, SCREEN_POLL_MS);
        }
      };
      sessions.push({ command });
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
  return { sessions, close: async () => void (await tmux('kill-server').catch(() => {})) };
}
