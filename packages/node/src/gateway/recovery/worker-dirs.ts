import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CaptureJournal } from '@floe-rl/capture';
import type { Clock } from '@floe-rl/core';
import { AttemptRecords } from './attempt-records.ts';
import { pathsIn, reapStateDir } from './state-dir.ts';

const WORKER_DIR = /^p(\d+)$/;

/**
 * Returns the state directory of one of several processes of a node. Its name is short because paths of Unix sockets are limited to about
 * 107 bytes.
 */
export function workerDir(stateDir: string, index: number): string {
  return join(stateDir, `p${index}`);
}

/**
 * Ends what an earlier gateway left in the state directories within `stateDir` that no process uses now, and returns these directories. An
 * earlier node with more than `count` processes leaves such directories. The caller holds the lock of `stateDir`. Throws `setup_failed` when a
 * directory has files of another format.
 */
export async function reapUnusedDirs(stateDir: string, count: number, clock: Clock): Promise<string[]> {
  const unused: string[] = [];
  for (const name of await readdir(stateDir)) {
    const index = WORKER_DIR.exec(name)?.[1];
    // A node of one process uses `stateDir` itself.
    if (index === undefined || (count > 1 && Number(index) < count)) continue;
    await reapStateDir(join(stateDir, name), clock);
    unused.push(join(stateDir, name));
  }
  return unused;
}

/** Paths of the attempt records and journal segments that earlier processes left. */
type Leftovers = { readonly records: readonly string[]; readonly segments: readonly string[] };

/** Returns the files in `own` and the files in state directories that no process uses. */
export async function withUnusedDirs(own: Leftovers, unusedDirs: readonly string[]): Promise<Leftovers> {
  const records = [...own.records];
  const segments = [...own.segments];
  for (const dir of unusedDirs) {
    const paths = pathsIn(dir);
    records.push(...(await AttemptRecords.open(paths.attempts)).earlierFiles);
    const journal = await CaptureJournal.open(paths.journal);
    segments.push(...journal.earlierSegments);
    await journal.close();
  }
  return { records, segments };
}
