import { randomUUID } from 'node:crypto';
import { link, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { FloeError } from './errors.ts';

/** Replaces a fact that this system does not provide. */
const UNKNOWN = 'unknown';

/**
 * Creates the lock file `path`, which marks what it guards as used by this process, and returns the function that removes it. The lock
 * of a dead process is taken over. Throws `setup_failed` when a live process holds the lock, or a process of another host, whose
 * liveness cannot be checked from here; `name` is what the message calls the guarded thing.
 */
export async function acquireLock(path: string, name: string): Promise<() => Promise<void>> {
  // The file is linked into place with its content: a half-written lock would be mistaken for that of a dead process.
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
    // When two processes find the same dead holder, the second must not remove the lock that the first has created since.
    const endTakeover = await acquireLock(`${path}.takeover`, name);
    try {
      if ((await readText(path)) === holder) await rm(path, { force: true });
    } finally {
      await endTakeover();
    }
  }
}

/** The text of a file; empty when it cannot be read. */
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
    if (isAlive) throw new FloeError('setup_failed', `${name} is in use by process ${pid}`, { lock: path, pid });
  } else if (host !== hostname()) {
    throw new FloeError(
      'setup_failed',
      `${name} is in use by process ${pid} on host ${host}; on a file system that hosts share, give each a directory of ` +
        `its own (of a node: --state-dir), or delete ${path} if that process no longer exists`,
      { lock: path, pid, host },
    );
  }
}

/** Changes with each start of the machine; the same in all of its containers, whatever their host names. */
async function bootId(): Promise<string> {
  return (await readText('/proc/sys/kernel/random/boot_id')).trim() || UNKNOWN;
}

/** When a process started, so that a recycled pid is not mistaken for the holder; `null` when no such process exists. */
async function startTimeOf(pid: number): Promise<string | null> {
  const stat = await readText(`/proc/${pid}/stat`);
  // Field 22 counted from 1. Field 2, the name, may contain spaces, so fields are counted from its closing bracket.
  return stat === '' ? null : (stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '');
}
