import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { takeLock } from '../core/process-lock.ts';

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
  const unlock = await takeLock(join(dir, LOCK), `the state directory ${dir}`);
  const paths = { journal: join(dir, 'journal'), sessions: join(dir, 'sessions'), sockets: join(dir, 'sockets') };
  for (const stale of [paths.sessions, paths.sockets]) await rm(stale, { recursive: true, force: true });
  for (const path of Object.values(paths)) await mkdir(path, { recursive: true, mode: 0o700 });
  return {
    ...paths,
    async release() {
      for (const path of [paths.sessions, paths.sockets]) await rm(path, { recursive: true, force: true });
      await unlock();
    },
  };
}
