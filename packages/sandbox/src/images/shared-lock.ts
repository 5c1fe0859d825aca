import { randomUUID } from 'node:crypto';
import { readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { type Clock, sleep } from '@floe-rl/core';

/** Interval in milliseconds at which the holder of a lock changes the file's time. */
const RENEW_MS = 5_000;
/** Time in milliseconds after which a lock whose file's time did not change belongs to a process that has ended. */
const EXPIRE_MS = 30_000;
const POLL_MS = 200;

/**
 * Runs `work` while no other process runs work with the same `path` in this function. This includes processes of other hosts that share the
 * file system. The lock of a process that has ended is taken over after {@link EXPIRE_MS}. When a process was suspended for longer than that,
 * two processes can hold the lock, so `work` must be correct without it. Rejects with the reason of `signal`.
 */
export async function withSharedLock<T>(
  path: string,
  { clock, signal }: { readonly clock: Clock; readonly signal: AbortSignal },
  work: () => Promise<T>,
): Promise<T> {
  const owner = `${hostname()} ${process.pid} ${randomUUID()}`;
  await acquire(path, owner, clock, signal);
  const ended = new AbortController();
  const renewing = renew(path, clock, ended.signal);
  try {
    return await work();
  } finally {
    ended.abort();
    await renewing;
    if ((await readFile(path, 'utf8').catch(() => '')) === owner) await rm(path, { force: true });
  }
}

async function acquire(path: string, owner: string, clock: Clock, signal: AbortSignal): Promise<void> {
  let seen: { readonly changedMs: number; readonly atMs: number } | null = null;
  for (;;) {
    signal.throwIfAborted();
    try {
      return await writeFile(path, owner, { flag: 'wx' });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const changedMs = await stat(path).then(
      ({ mtimeMs }) => mtimeMs,
      () => null,
    );
    // The clocks of other hosts can be wrong, so a lock is judged only by whether the file's time changes.
    if (changedMs === null) seen = null;
    else if (seen === null || seen.changedMs !== changedMs) seen = { changedMs, atMs: clock.monotonicMs() };
    else if (clock.monotonicMs() - seen.atMs > EXPIRE_MS) {
      const expired = `${path}.${randomUUID()}`;
      await rename(path, expired).then(
        () => rm(expired, { force: true }),
        () => {},
      );
      seen = null;
    }
    await sleep(clock, POLL_MS, signal);
  }
}

async function renew(path: string, clock: Clock, ended: AbortSignal): Promise<void> {
  while (!ended.aborted) {
    await sleep(clock, RENEW_MS, ended).catch(() => {});
    if (ended.aborted) return;
    const nowSeconds = clock.nowMs() / 1000;
    await utimes(path, nowSeconds, nowSeconds).catch(() => {});
  }
}
