import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { sleep, systemClock } from '@floe-rl/core';

/** Maximum time in milliseconds in which the processes of a group must have ended after SIGTERM. */
const END_TIMEOUT_MS = 30_000;
const POLL_INTERVAL_MS = 100;

/**
 * Waits for the end of a shell, which is the leader of its process group, and ends what is left of the group. Returns the shell's exit status; "a time limit"
 * when it ran for too long.
 */
export async function endOf(child: ChildProcess, limitMs: number): Promise<number | string> {
  const { pid } = child;
  if (pid === undefined) throw new Error('bash cannot be started');
  const stopped = new AbortController();
  const limit = sleep(systemClock, limitMs, stopped.signal).then(
    () => true,
    () => false,
  );
  const ended = once(child, 'exit').then(([code, signal]) => String(code ?? signal));
  const status = await Promise.race([ended, limit.then((isOver) => (isOver ? 'a time limit' : ended))]);
  stopped.abort();
  await endGroup(pid);
  return status === '0' ? 0 : status;
}

/** Ends the processes of a group: by SIGTERM, and those that have not ended after a time by SIGKILL. */
async function endGroup(pid: number): Promise<void> {
  const giveUpMs = systemClock.monotonicMs() + END_TIMEOUT_MS;
  let signal: NodeJS.Signals | 0 = 'SIGTERM';
  while (isSent(pid, signal)) {
    await sleep(systemClock, POLL_INTERVAL_MS);
    signal = systemClock.monotonicMs() > giveUpMs ? 'SIGKILL' : 0;
  }
}

/** Whether the group had a process to which the signal was sent. Signal 0 only asks that. */
function isSent(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(-pid, signal);
  } catch {
    return false;
  }
}
