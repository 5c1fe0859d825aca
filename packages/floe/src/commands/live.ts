import type { WriteStream } from 'node:tty';
import { FloeError, sleep, systemClock } from '@floe-rl/core';
import { paint, visible } from './print.ts';
import { Screen } from './screen.ts';

/** Least time between two requests, in milliseconds. */
const INTERVAL_MS = 1_000;
/** The pause after a request is at least this many times as long as the request took, so that a large reply costs the server little. */
const PAUSE_FACTOR = 10;

/** Lines to show, and whether no further lines follow. */
export type LiveLines = { readonly lines: readonly string[]; readonly isOver: boolean };

/**
 * Reads lines about once a second and passes them to `show`, until no further lines follow. Rejects when `signal` aborts, and with the first
 * error. After lines were shown, a transient error is passed to `show` with the old lines, and reading continues.
 */
export async function repeatLines(
  read: () => Promise<LiveLines>,
  show: (lines: readonly string[], problem: string | null) => void,
  signal: AbortSignal,
): Promise<void> {
  let last: readonly string[] | null = null;
  for (;;) {
    const startMs = systemClock.monotonicMs();
    try {
      const { lines, isOver } = await read();
      last = lines;
      show(lines, null);
      if (isOver) return;
    } catch (thrown) {
      if (signal.aborted || last === null || !FloeError.is(thrown) || !thrown.retryable) throw thrown;
      show(last, `out of date: ${visible(thrown.message)}; the command tries again`);
    }
    await sleep(systemClock, Math.max(INTERVAL_MS, PAUSE_FACTOR * (systemClock.monotonicMs() - startMs)), signal);
  }
}

/**
 * Reads lines with {@link repeatLines} and draws each new version on the terminal. The terminal is restored at the end, also after an error.
 */
export async function showLive(
  output: WriteStream,
  read: () => Promise<LiveLines>,
  signal: AbortSignal,
): Promise<void> {
  const screen = new Screen(output);
  try {
    await repeatLines(
      read,
      (lines, problem) => screen.draw(problem === null ? lines : [paint('red', problem), ...lines]),
      signal,
    );
  } finally {
    screen.close();
  }
}
