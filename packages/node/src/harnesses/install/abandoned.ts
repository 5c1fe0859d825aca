import { readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { INSTALLATION_MARK } from '@floe-rl/core';

/** Prefix of the temporary directories in which installations are built. The id of the installing process follows it. */
export const TEMP_PREFIX = '.installing-';

/**
 * How often the removal of a directory is retried, and the time between two tries in milliseconds. A removal can fail because a process that
 * was just killed has still created a file in the directory.
 */
const REMOVE_RETRIES = { maxRetries: 10, retryDelay: 100 };

/**
 * Removes the temporary directories of installing processes that no longer run. First ends the tools that those processes left running, such
 * as `npm`, because they would continue to write to the directories.
 */
export async function removeAbandoned(parent: string): Promise<void> {
  for (const entry of await readdir(parent)) {
    const pid = Number(new RegExp(`^\\${TEMP_PREFIX}(\\d+)-`).exec(entry)?.[1]);
    if (Number.isNaN(pid) || isRunning(pid)) continue;
    const dir = join(parent, entry);
    for (const tool of await toolsOf(dir)) kill(tool);
    await rm(dir, { recursive: true, force: true, ...REMOVE_RETRIES });
  }
}

/** Returns the ids of the processes that are marked as tools of an installation. Finds none on a system without /proc. */
async function toolsOf(dir: string): Promise<number[]> {
  const found: number[] = [];
  for (const pid of (await readdir('/proc').catch(() => [])).map(Number)) {
    if (!(pid > 0)) continue;
    // The read fails for processes that have ended and for processes of other users.
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
    if (environment.split('\0').includes(`${INSTALLATION_MARK}=${dir}`)) found.push(pid);
  }
  return found;
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The process has already ended.
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
