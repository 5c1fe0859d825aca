// Kill points: the same process killed before its n-th write, sync or send, for every n that a run reaches.
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** What makes state durable, and what lets it out of the process. */
export const CLASSES = {
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
};

/** `command` under strace, killed before its n-th call of a class. Threads count for themselves, so the first that gets there decides. */
export function killAt(command, kind, n) {
  const calls = CLASSES[kind].join(',');
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

/** `command` under strace, whose calls of a class are written to `log`. */
export function counted(command, kind, log) {
  return ['strace', '-f', '-qq', '-o', log, '-e', `trace=${CLASSES[kind].join(',')}`, '-e', 'signal=none', ...command];
}

/** The largest number of calls that one thread made, from a log of `counted`. */
export async function callsIn(log) {
  const counts = new Map();
  for (const line of (await readFile(log, 'utf8')).split('\n')) {
    const pid = line.split(' ')[0];
    if (pid !== '') counts.set(pid, (counts.get(pid) ?? 0) + 1);
  }
  return Math.max(0, ...counts.values());
}

/** Runs `work(logFile)` with a log file that is gone afterwards. */
export async function withLog(work) {
  const dir = await mkdtemp(join(tmpdir(), 'floe-strace-'));
  try {
    return await work(join(dir, 'calls.log'));
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

/** `count` numbers from 1 to `last`, evenly spread, dense at the start where little is durable yet. */
export function spread(last, count) {
  const picked = new Set();
  for (let i = 0; i < count && picked.size < last; i++) {
    const share = i / Math.max(1, count - 1);
    picked.add(1 + Math.round((last - 1) * share ** 1.5));
  }
  return [...picked].sort((a, b) => a - b);
}
