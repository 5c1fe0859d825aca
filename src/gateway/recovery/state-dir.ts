import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, realpath, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { acquireLock } from '../../core/process-lock.ts';
import { removeTree } from '../../core/remove-tree.ts';
import { openAppendFile } from '../../proxy/journal/append-file.ts';
import { type EndedCounts, endOwned } from '../../runtimes/processes/orphans.ts';

/** What a dead gateway had left behind. */
export type Reaped = EndedCounts & { readonly mounts: number; readonly directories: number; readonly sockets: number };

/** A gateway's own directory on its host, held by one live process at a time. */
export type StateDir = {
  /** Made with the directory: what its gateways start is labelled with it. */
  readonly ownerId: string;
  readonly journal: string;
  /** A record of every attempt that has begun and is not done with. */
  readonly attempts: string;
  /** Damaged files, for a person to look at; floe never reads them again. */
  readonly quarantine: string;
  readonly sessions: string;
  /** Short, since Unix socket paths end at about 107 bytes. */
  readonly sockets: string;
  readonly reaped: Reaped;
  /** Removes what belonged to live sessions and lets go of the directory. May be called twice. */
  release(): Promise<void>;
};

const LOCK = 'gateway.lock';
const OWNER = 'owner-id';
const OWNER_ID = /^[0-9a-f]{16}$/;

/**
 * Takes `dir` for this process and ends what an earlier, dead gateway left of its sessions: processes, control groups, mounts,
 * directories and sockets, of this directory's gateways alone. Throws `setup_failed` when a live process holds it.
 */
export async function takeStateDir(dir: string, clock: Clock): Promise<StateDir> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const unlock = await acquireLock(join(dir, LOCK), `the state directory ${dir}`);
  try {
    const paths = {
      journal: join(dir, 'journal'),
      attempts: join(dir, 'attempts'),
      quarantine: join(dir, 'quarantine'),
      sessions: join(dir, 'sessions'),
      sockets: join(dir, 'sockets'),
    };
    const ownerId = await ownerIdOf(dir);
    const reaped = await reap(ownerId, paths, clock);
    for (const path of Object.values(paths)) await mkdir(path, { recursive: true, mode: 0o700 });
    return {
      ...paths,
      ownerId,
      reaped,
      async release() {
        try {
          for (const path of [paths.sessions, paths.sockets]) await removeTree(path);
        } finally {
          await unlock();
        }
      },
    };
  } catch (error) {
    await unlock();
    throw error;
  }
}

/** Random rather than made from the path: the same path may be another directory in another container of this host. */
async function ownerIdOf(dir: string): Promise<string> {
  const path = join(dir, OWNER);
  const known = await readFile(path, 'latin1').catch(() => '');
  if (OWNER_ID.test(known)) return known;
  const id = randomBytes(8).toString('hex');
  const fresh = join(dir, `${OWNER}.${id}`);
  const file = await openAppendFile(fresh);
  await file.append(Buffer.from(id));
  await file.close();
  await rename(fresh, path);
  return id;
}

async function reap(ownerId: string, paths: { sessions: string; sockets: string }, clock: Clock): Promise<Reaped> {
  // Whoever held the lock before is dead, so every label of this owner is of the dead.
  const ended = await endOwned(ownerId, () => true, clock);
  const mounts = await unmountBelow(paths.sessions);
  const directories = await countSessions(paths.sessions);
  const sockets = (await readdir(paths.sockets).catch(() => [])).length;
  for (const stale of [paths.sessions, paths.sockets]) await removeTree(stale);
  return { ...ended, mounts, directories, sockets };
}

async function countSessions(sessions: string): Promise<number> {
  let count = 0;
  for (const backend of await readdir(sessions).catch(() => [])) {
    const names = await readdir(join(sessions, backend)).catch(() => []);
    count += names.filter((name) => !name.startsWith('.')).length;
  }
  return count;
}

/** Sandboxes mount in namespaces of their own; whatever shows here must go before anything below it is deleted. */
async function unmountBelow(dir: string): Promise<number> {
  const before = await mountsBelow(dir);
  for (const point of before.reverse()) await promisify(execFile)('umount', ['-l', point]).catch(() => {});
  const [left] = await mountsBelow(dir);
  if (left === undefined) return before.length;
  throw new FloeError('setup_failed', `a dead gateway left ${left} mounted; unmount it and start again`, {
    path: left,
  });
}

async function mountsBelow(dir: string): Promise<string[]> {
  const root = await realpath(dir).catch(() => null);
  if (root === null) return [];
  const table = await readFile('/proc/self/mountinfo', 'utf8').catch(() => '');
  return table.split('\n').flatMap((line) => {
    // The fifth field, where the kernel writes blanks and backslashes as octal numbers.
    const point = (line.split(' ')[4] ?? '').replace(/\\([0-7]{3})/g, (_, octal) =>
      String.fromCharCode(Number.parseInt(octal, 8)),
    );
    return point === root || point.startsWith(`${root}/`) ? [point] : [];
  });
}
