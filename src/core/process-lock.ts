import { randomUUID } from 'node:crypto';
import { link, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { FloeError } from './errors.ts';

/** Stands for what this system does not tell. */
const UNKNOWN = 'unknown';

/**
 * Makes the file `path`, which says that this process uses what is beside it, and returns the function that removes it.
 * The file of a process that is gone is taken over. Throws `setup_failed` when a live process holds it, or one of another
 * host, of which nobody here knows whether it lives: `what` names the thing in that message.
 */
export async function takeLock(path: string, what: string): Promise<() => Promise<void>> {
  // Linked into place with its content: a lock that is seen half-written would be taken for that of a dead process.
  const own = `${path}.${process.pid}-${randomUUID()}`;
  const start = (await startOf(process.pid)) ?? UNKNOWN;
  await writeFile(own, `${process.pid} ${start} ${await bootId()} ${hostname()}`, { mode: 0o600, flag: 'wx' });
  try {
    return await linkLock(own, path, what);
  } finally {
    await rm(own, { force: true });
  }
}

async function linkLock(own: string, path: string, what: string): Promise<() => Promise<void>> {
  for (;;) {
    try {
      await link(own, path);
      return () => rm(path, { force: true });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const holder = await contentOf(path);
    await refuseLive(holder, path, what);
    // Of two that found the same dead holder the second must not remove the lock that the first has made since.
    const done = await takeLock(`${path}.takeover`, what);
    try {
      if ((await contentOf(path)) === holder) await rm(path, { force: true });
    } finally {
      await done();
    }
  }
}

function contentOf(path: string): Promise<string> {
  return readFile(path, 'utf8').catch(() => '');
}

async function refuseLive(holder: string, path: string, what: string): Promise<void> {
  // Locks of earlier versions name no machine.
  const [pidText, start, boot = await bootId(), host = hostname()] = holder.split(' ');
  const pid = Number(pidText);
  if (!(pid > 0)) return;
  const ofThisBoot = boot === (await bootId()) && (boot !== UNKNOWN || host === hostname());
  if (ofThisBoot) {
    const live = start === ((await startOf(pid)) ?? (pid === process.pid ? UNKNOWN : null));
    if (live) throw new FloeError('setup_failed', `${what} is in use by process ${pid}`, { lock: path, pid });
  } else if (host !== hostname()) {
    throw new FloeError(
      'setup_failed',
      `${what} is in use by process ${pid} on host ${host}; on a file system that hosts share, give each a directory of ` +
        `its own (of a node: --state-dir), or delete ${path} if that process is gone`,
      { lock: path, pid, host },
    );
  }
}

/** Another one after each start of the machine, and the same in all of its containers, whatever their host names. */
async function bootId(): Promise<string> {
  return (await contentOf('/proc/sys/kernel/random/boot_id')).trim() || UNKNOWN;
}

/** When the process began, so that a recycled pid is not mistaken for the holder; null: there is none. */
async function startOf(pid: number): Promise<string | null> {
  const stat = await contentOf(`/proc/${pid}/stat`);
  // Field 22 counted from 1; the name in field 2 may hold spaces, so count from its closing bracket.
  return stat === '' ? null : (stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '');
}
