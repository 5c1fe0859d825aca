// Kills a process at a kill point, that is, before its n-th write, sync or send, for every n that a run reaches.
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The system calls of each class: `sync` calls make state durable, and `send` calls send it out of the process. */
export const CALL_CLASSES = {
  sync: [
    'fsync',
    'fdatasync',
    'pwrite64',
    'rename',
    'renameat',
    'renameat2',
    'link',
    'linkat',
    'unlink',
    'unlinkat',
    'ftruncate',
    'mkdir',
  ],
  send: ['write', 'writev', 'sendmsg', 'sendto'],
} as const;

export type CallClass = keyof typeof CALL_CLASSES;

/**
 * Returns the command line that runs `command` under strace, which kills it before its n-th call of a class. strace counts the calls of
 * each thread separately; the first thread to reach n triggers the kill.
 */
export function killAt(command: readonly string[], kind: CallClass, n: number): string[] {
  const calls = CALL_CLASSES[kind].join(',');
  return [
    'strace',
    '-f',
    '-qq',
    '-o',
    '/dev/null',
    '-e',
    `trace=${calls}`,
    '-e',
    `inject=${calls}:signal=KILL:when=${n}`,
    ...command,
  ];
}

/** Returns the command line that runs `command` under strace, which writes its calls of a class to the file `log`. */
export function logCalls(command: readonly string[], kind: CallClass, log: string): string[] {
  return [
    'strace',
    '-f',
    '-qq',
    '-o',
    log,
    '-e',
    `trace=${CALL_CLASSES[kind].join(',')}`,
    '-e',
    'signal=none',
    ...command,
  ];
}

/** Returns the largest number of calls that one thread made, from a log that `logCalls` wrote. */
export async function countCalls(log: string): Promise<number> {
  const counts = new Map<string, number>();
  for (const line of (await readFile(log, 'utf8')).split('\n')) {
    const [pid = ''] = line.split(' ');
    if (pid !== '') counts.set(pid, (counts.get(pid) ?? 0) + 1);
  }
  return Math.max(0, ...counts.values());
}

/** Runs `work` with the path of a temporary log file and removes the file afterwards. */
export async function withLog<T>(work: (log: string) => Promise<T>): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-strace-'));
  try {
    return await work(join(dir, 'calls.log'));
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

/** Returns at most `count` ascending numbers from 1 to `last`. They are denser at the start, where little state is durable yet. */
export function spread(last: number, count: number): number[] {
  const picked = new Set<number>();
  for (let i = 0; i < count && picked.size < last; i++) {
    const share = i / Math.max(1, count - 1);
    picked.add(1 + Math.round((last - 1) * share ** 1.5));
  }
  return [...picked].sort((a, b) => a - b);
}
