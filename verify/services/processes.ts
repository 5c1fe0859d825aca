import { readdirSync, readFileSync } from 'node:fs';

/** Returns the pids of a process's direct children; an empty list when the process has ended. */
export function childrenOf(pid: number): number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** Returns the pids of all processes, except this program's own, whose environment or command line contains `marker`. */
export function processesWith(marker: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && pid !== process.pid)
    .filter((pid) =>
      ['environ', 'cmdline'].some((file) => {
        try {
          return readFileSync(`/proc/${pid}/${file}`, 'latin1').includes(marker);
        } catch {
          // The files of a process cannot be read when the process has ended or belongs to another user.
          return false;
        }
      }),
    );
}

/** Returns the resident memory of a process in KiB: now, or the largest so far. Throws an Error when the process has ended. */
export function residentKb(pid: number, when: 'now' | 'peak' = 'now'): number {
  const field = when === 'now' ? /VmRSS:\s+(\d+)/ : /VmHWM:\s+(\d+)/;
  const [, text] = field.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  if (text === undefined) throw new Error(`process ${pid} has no resident memory: it has ended`);
  return Number(text);
}

/**
 * Sends a signal to the process `pid`, which must be a descendant of this program. A negative number stands for a process group. Returns false
 * when there is no such process. Signal 0 only checks whether it exists.
 */
export function killPid(pid: number, name: NodeJS.Signals | 0 = 'SIGKILL'): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}
