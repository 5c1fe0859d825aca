import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { sleep, systemClock } from '@floe-rl/core';
import { parseStat } from '../../verify/matrix/process-watch.ts';
import { childrenOf } from '../../verify/services/processes.ts';

/** Interval in ms at which a starting server is requested, and the time after which it counts as failed. */
const POLL_MS = 100;
const START_LIMIT_MS = 180_000;
/** Time in ms between the request to end and the kill of the processes that still run. */
const END_LIMIT_MS = 5_000;
/** Maximum number of characters of a failed server's output that the error message quotes. */
const QUOTED_CHARS = 600;

const TICKS_PER_SECOND = Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));

/**
 * Returns the CPU time, user and system, that a process and all its descendants have used so far, in microseconds, with the resolution of a
 * clock tick. It includes descendants that have ended.
 */
export function treeCpuUs(pid: number): number {
  const { cpuTicks, endedCpuTicks } = parseStat(pid, readFileSync(`/proc/${pid}/stat`, 'utf8'));
  const own = ((cpuTicks + endedCpuTicks) * 1e6) / TICKS_PER_SECOND;
  return childrenOf(pid).reduce((sum, child) => sum + treeCpuUs(child), own);
}

export type Server = { readonly pid: number; close(): Promise<void> };

export type ServerCommand = {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** File for the output of the process. */
  readonly log: string;
  /** URL that answers with any status when the server is ready. */
  readonly readyUrl: string;
};

/**
 * Starts a server as a process of its own and waits until it answers. Rejects with an Error that quotes its output when it does not. The
 * server ends at the latest with this process.
 */
export async function startServer({ program, args, env, log, readyUrl }: ServerCommand): Promise<Server> {
  const output = openSync(log, 'w');
  const child = spawn(program, args, {
    env: { PATH: process.env.PATH ?? '', HOME: process.env.HOME ?? '', ...env },
    stdio: ['ignore', output, output],
  });
  closeSync(output);
  const kill = (): void => void child.kill('SIGKILL');
  process.once('exit', kill);
  const ended = once(child, 'exit').catch((error: Error) => [error.message]);
  let end: string | null = null;
  void ended.then(([reason]) => {
    end = `ended with ${reason ?? 'a signal'}`;
  });
  const close = async (): Promise<void> => {
    if (end !== null) return;
    child.kill();
    const cancel = systemClock.schedule(END_LIMIT_MS, () => child.kill('SIGKILL'));
    await ended;
    cancel();
    process.off('exit', kill);
  };
  const startMs = systemClock.monotonicMs();
  while (!(await answers(readyUrl))) {
    if (end === null && systemClock.monotonicMs() - startMs < START_LIMIT_MS) {
      await sleep(systemClock, POLL_MS);
      continue;
    }
    const reason = end ?? `did not answer within ${START_LIMIT_MS / 1000} s`;
    await close();
    throw new Error(`${program} ${reason}: ${readFileSync(log, 'utf8').trim().slice(-QUOTED_CHARS)}`);
  }
  return { pid: child.pid ?? 0, close };
}

async function answers(url: string): Promise<boolean> {
  try {
    await (await fetch(url)).text();
    return true;
  } catch {
    return false;
  }
}
