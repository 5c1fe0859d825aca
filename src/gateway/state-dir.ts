import { mkdir, open, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../core/errors.ts';

/** A gateway's own directory on its host, held by one live process at a time. */
export type StateDir = {
  readonly journal: string;
  readonly sessions: string;
  /** Short, since Unix socket paths end at about 107 bytes. */
  readonly sockets: string;
  /** Removes what belonged to live sessions and lets go of the directory. May be called twice. */
  release(): Promise<void>;
};

const LOCK = 'gateway.lock';

/**
 * Takes `dir` for this process and clears what an earlier, dead gateway left of its sessions. Throws `setup_failed`
 * when a live process holds it.
 */
export async function takeStateDir(dir: string): Promise<StateDir> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const lock = join(dir, LOCK);
  await takeLock(lock, dir);
  const paths = { journal: join(dir, 'journal'), sessions: join(dir, 'sessions'), sockets: join(dir, 'sockets') };
  for (const stale of [paths.sessions, paths.sockets]) await rm(stale, { recursive: true, force: true });
  for (const path of Object.values(paths)) await mkdir(path, { recursive: true, mode: 0o700 });
  return {
    ...paths,
    async release() {
      for (const path of [paths.sessions, paths.sockets]) await rm(path, { recursive: true, force: true });
      await rm(lock, { force: true });
    },
  };
}

async function takeLock(lock: string, dir: string): Promise<void> {
  for (;;) {
    try {
      const file = await open(lock, 'wx', 0o600);
      await file.writeFile(await identity(process.pid));
      await file.close();
      return;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const holder = await readFile(lock, 'utf8').catch(() => '');
    const pid = Number(holder.split(' ')[0]);
    if (pid > 0 && holder === (await identity(pid))) {
      throw new FloeError(
        'setup_failed',
        `${dir} is in use by process ${pid}; give this gateway another state directory`,
        { dir, pid },
      );
    }
    await rm(lock, { force: true });
  }
}

/** Pid and start time, so that a recycled pid is not mistaken for the holder. */
async function identity(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
  if (stat === null) return pid === process.pid ? `${pid} unknown` : 'gone';
  // Field 22 counted from 1; the name in field 2 may hold spaces, so count from its closing bracket.
  return `${pid} ${stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? ''}`;
}
