import { randomUUID } from 'node:crypto';
import { link, readFile, rm, writeFile } from 'node:fs/promises';
import { FloeError } from './errors.ts';

/**
 * Makes the file `path`, which says that this process uses what is beside it, and returns the function that removes it.
 * The file of a process that is gone is taken over. Throws `setup_failed` when a live process holds it: `what` names the
 * thing in that message.
 */
export async function takeLock(path: string, what: string): Promise<() => Promise<void>> {
  // Linked into place with its content: a lock that is seen half-written would be taken for that of a dead process.
  const own = `${path}.${process.pid}-${randomUUID()}`;
  await writeFile(own, await identity(process.pid), { mode: 0o600, flag: 'wx' });
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
    const holder = await readFile(path, 'utf8').catch(() => '');
    const pid = Number(holder.split(' ')[0]);
    if (pid > 0 && holder === (await identity(pid))) {
      throw new FloeError('setup_failed', `${what} is in use by process ${pid}`, { lock: path, pid });
    }
    await rm(path, { force: true });
  }
}

/** Pid and start time, so that a recycled pid is not mistaken for the holder. */
async function identity(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
  if (stat === null) return pid === process.pid ? `${pid} unknown` : 'gone';
  // Field 22 counted from 1; the name in field 2 may hold spaces, so count from its closing bracket.
  return `${pid} ${stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? ''}`;
}
