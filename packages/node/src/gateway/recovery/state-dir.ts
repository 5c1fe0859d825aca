import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, realpath, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { openAppendFile } from '@floe-rl/capture';
import { acquireLock, type Clock, ensureWritableDir, FloeError, removeTree } from '@floe-rl/core';
import { type EndedCounts, endOwned } from '@floe-rl/sandbox';

/** Counts of the processes and files that an earlier gateway process left in the state directory and on the host, and that were removed. */
export type ReapedCounts = EndedCounts & {
  readonly mounts: number;
  readonly directories: number;
  readonly sockets: number;
};

/** The state directory, in which a gateway keeps its files. Only one live process uses it. */
export type StateDir = {
  /** Random id of the state directory. It is part of the label of every process and control group that gateways of this directory start. */
  readonly ownerId: string;
  readonly journal: string;
  /** Directory of the records of attempts that have started and are not yet delivered. */
  readonly attempts: string;
  /** Directory of damaged files, which are kept for an operator; floe does not read them. */
  readonly quarantine: string;
  readonly sessions: string;
  /** Directory of the proxy's Unix sockets. Its path is short, since the path of a Unix socket has at most about 107 bytes. */
  readonly sockets: string;
  readonly reaped: ReapedCounts;
  /** Removes the files of live sessions and releases the lock of the state directory. May be called twice. */
  release(): Promise<void>;
};

const LOCK = 'gateway.lock';
const OWNER = 'owner-id';
const OWNER_ID = /^[0-9a-f]{16}$/;
const FORMAT = 'format';
/**
 * Content of the file `format` in the state directory. It must be changed when a gateway can no longer read the journal or the attempt
 * records of an earlier version.
 */
const FORMAT_ID = 'floe-gateway-1';

/**
 * Locks the state directory `dir` for this process, and removes everything that the sessions of an earlier process left: processes, control
 * groups, mounts, directories and sockets. Throws `setup_failed`, without changing a file, when a live process uses the directory, or it
 * contains files of another format or cannot be written to.
 */
export async function openStateDir(dir: string, clock: Clock): Promise<StateDir> {
  ensureWritableDir(dir, 'choose another state directory with --state-dir (of `floe up`: --dir) or $FLOE_HOME');
  await refuseOtherFormat(dir);
  const unlock = await acquireLock(join(dir, LOCK), `the state directory ${dir}`);
  try {
    const paths = pathsIn(dir);
    if ((await formatOf(dir)) === null) await writeDurably(join(dir, FORMAT), FORMAT_ID);
    const ownerId = await ensureOwnerId(dir);
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

/**
 * Removes a state directory together with everything on this host that belongs to it: processes, control groups and mounts. Deleting only
 * the files would also delete the owner id, without which no later gateway can find the rest. Does nothing when the directory does not
 * exist. The caller must make sure that no live process uses the directory.
 */
export async function removeStateDir(dir: string, clock: Clock): Promise<void> {
  const ownerId = await knownOwnerId(dir);
  if (ownerId !== null) await reap(ownerId, pathsIn(dir), clock);
  await removeTree(dir);
}

/**
 * Ends the processes and removes the files of live sessions that an earlier gateway left in a state directory; records and journal stay.
 * The caller must make sure that no live process uses the directory. Throws `setup_failed` when it contains files of another format.
 */
export async function reapStateDir(dir: string, clock: Clock): Promise<void> {
  await refuseOtherFormat(dir);
  const ownerId = await knownOwnerId(dir);
  if (ownerId !== null) await reap(ownerId, pathsIn(dir), clock);
}

/** Paths of the files of a state directory, by their purpose. */
type StatePaths = Pick<StateDir, 'journal' | 'attempts' | 'quarantine' | 'sessions' | 'sockets'>;

export function pathsIn(dir: string): StatePaths {
  return {
    journal: join(dir, 'journal'),
    attempts: join(dir, 'attempts'),
    quarantine: join(dir, 'quarantine'),
    sessions: join(dir, 'sessions'),
    sockets: join(dir, 'sockets'),
  };
}

/** Throws `setup_failed` unless the state directory is new or has the format of this version. */
async function refuseOtherFormat(dir: string): Promise<void> {
  const found = await formatOf(dir);
  if (found === FORMAT_ID || (found === null && (await isNew(dir)))) return;
  const message =
    `the state directory ${dir} has the format ${found ?? 'none'}, and this version of floe needs ${FORMAT_ID}; ` +
    'move the directory away or use an empty one';
  throw new FloeError('setup_failed', message, { path: dir, found, expected: FORMAT_ID });
}

/** Reads the format of a state directory; `null` when it has no format file. */
async function formatOf(dir: string): Promise<string | null> {
  const text = await readFile(join(dir, FORMAT), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  return text === null ? null : text.trim();
}

/**
 * Whether the state directory contains only files that a file system or the start of a gateway creates: `lost+found`, locks and unfinished
 * files.
 */
async function isNew(dir: string): Promise<boolean> {
  const names = await readdir(dir);
  return names.every((name) => name === 'lost+found' || name.startsWith(LOCK) || name.startsWith(`${FORMAT}.`));
}

/**
 * Returns the id of the state directory, and creates the id when it does not exist. The id is random and not derived from the path, because
 * the same path can be another directory in another container of this host.
 */
async function ensureOwnerId(dir: string): Promise<string> {
  const known = await knownOwnerId(dir);
  if (known !== null) return known;
  const id = randomBytes(8).toString('hex');
  await writeDurably(join(dir, OWNER), id);
  return id;
}

/** Returns the id of the state directory; `null` when it has none. */
async function knownOwnerId(dir: string): Promise<string | null> {
  const known = await readFile(join(dir, OWNER), 'latin1').catch(() => '');
  return OWNER_ID.test(known) ? known : null;
}

/** Creates or replaces a file so that after a crash it has either the old or the new content. */
async function writeDurably(path: string, content: string): Promise<void> {
  const unfinished = `${path}.${randomBytes(8).toString('hex')}`;
  const file = await openAppendFile(unfinished);
  await file.append(Buffer.from(content));
  await file.close();
  await rename(unfinished, path);
}

async function reap(ownerId: string, paths: StatePaths, clock: Clock): Promise<ReapedCounts> {
  // The process that held the lock earlier has ended. Every process with the label of this state directory is therefore a leftover.
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

/**
 * Unmounts everything below a directory, so that deleting the directory does not delete files of another file system. Returns the number
 * of mounts, which is normally 0 because sandboxes mount in namespaces of their own. Throws `setup_failed` when a mount cannot be removed.
 */
async function unmountBelow(dir: string): Promise<number> {
  const found = await mountsBelow(dir);
  for (const point of found.reverse()) await promisify(execFile)('umount', ['-l', point]).catch(() => {});
  const [left] = await mountsBelow(dir);
  if (left === undefined) return found.length;
  throw new FloeError('setup_failed', `an earlier gateway process left ${left} mounted; unmount it and restart`, {
    path: left,
  });
}

async function mountsBelow(dir: string): Promise<string[]> {
  const root = await realpath(dir).catch(() => null);
  if (root === null) return [];
  const table = await readFile('/proc/self/mountinfo', 'utf8').catch(() => '');
  return table.split('\n').flatMap((line) => {
    // The fifth field is the mount point. The kernel writes its spaces and backslashes as octal numbers.
    const point = (line.split(' ')[4] ?? '').replace(/\\([0-7]{3})/g, (_, octal) =>
      String.fromCharCode(Number.parseInt(octal, 8)),
    );
    return point === root || point.startsWith(`${root}/`) ? [point] : [];
  });
}
