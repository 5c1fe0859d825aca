import { randomUUID } from 'node:crypto';
import { link, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { FloeError } from './errors.ts';

/** Placeholder that is written to a lock file for a value that this system does not provide, such as the boot id. */
const UNKNOWN = 'unknown';

/**
 * Creates the lock file `path`, which reserves a resource for this process, and returns a function that removes it. The lock of a dead
 * process is taken over. Throws `setup_failed` when the lock belongs to a live process, or to a process on another host, because this host
 * cannot check whether that process is alive. `name` names the resource in the message.
 */
export async function acquireLock(path: string, name: string): Promise<() => Promise<void>> {
  // The lock is written to another file and then linked to its path, because a half-written lock would look like the lock of a dead
  // process.
  const own = `${path}.${process.pid}-${randomUUID()}`;
  const start = (await startTimeOf(process.pid)) ?? UNKNOWN;
  await writeFile(own, `${process.pid} ${start} ${await bootId()} ${hostname()}`, { mode: 0o600, flag: 'wx' });
  try {
    return await linkLock(own, path, name);
  } finally {
    await rm(own, { force: true });
  }
}

async function linkLock(own: string, path: string, name: string): Promise<() => Promise<void>> {
  for (;;) {
    try {
      await link(own, path);
      return () => rm(path, { force: true });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const holder = await readText(path);
    await assertHolderDead(holder, path, name);
    // When two processes find the lock of the same dead process, the slower one must not remove the lock that the faster one has just
    // created.
    const endTakeover = await acquireLock(`${path}.takeover`, name);
    try {
      if ((await readText(path)) === holder) await rm(path, { force: true });
    } finally {
      await endTakeover();
    }
  }
}

/** Returns the text of a file; an empty string when it cannot be read. */
function readText(path: string): Promise<string> {
  return readFile(path, 'utf8').catch(() => '');
}

async function assertHolderDead(holder: string, path: string, name: string): Promise<void> {
  const [pidText, start, boot, host] = holder.split(' ');
  const pid = Number(pidText);
  if (!(pid > 0)) return;
  const isThisBoot = boot === (await bootId()) && (boot !== UNKNOWN || host === hostname());
  if (isThisBoot) {
    const isAlive = start === ((await startTimeOf(pid)) ?? (pid === process.pid ? UNKNOWN : null));
    if (isAlive)
      throw new FloeError(
        'setup_failed',
        `${name} is in use by process ${pid}; stop that process, or use another directory`,
        { lock: path, pid },
      );
  } else if (host !== hostname()) {
    throw new FloeError(
      'setup_failed',
      `${name} is in use by process ${pid} on host ${host}; on a file system that hosts share, give each a directory of ` +
        `its own (of a node: --state-dir), or delete ${path} if that process no longer exists`,
      { lock: path, pid, host },
    );
  }
}

/** Returns the id of the machine's current boot. All containers of the machine have the same boot id, whatever their host names. */
async function bootId(): Promise<string> {
  return (await readText('/proc/sys/kernel/random/boot_id')).trim() || UNKNOWN;
}

/**
 * Returns the time at which a process started; `null` when no such process exists. It prevents that a process with a recycled pid is
 * mistaken for the holder of the lock.
 */
async function startTimeOf(pid: number): Promise<string | null> {
  const stat = await readText(`/proc/${pid}/stat`);
  // The start time is field 22, counted from 1. The name in field 2 may contain spaces, so fields are counted from the parenthesis that
  // closes it.
  return stat === '' ? null : (stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '');
}
