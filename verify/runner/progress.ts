import { systemClock } from '@floe-rl/core';

/** Minimum time in ms between two lines of progress when standard error is not a terminal. */
const PLAIN_INTERVAL_MS = 15_000;

/**
 * Shows the progress of a program on standard error: on a terminal as one line that is rewritten in place, elsewhere as a new line at most
 * every 15 seconds.
 */
export class Progress {
  private lastPlainMs = 0;
  private isShown = false;

  show(text: string): void {
    const nowMs = systemClock.monotonicMs();
    if (process.stderr.isTTY) {
      process.stderr.write(`\r\x1b[K${text}`);
      this.isShown = true;
    } else if (nowMs - this.lastPlainMs > PLAIN_INTERVAL_MS) {
      this.lastPlainMs = nowMs;
      process.stderr.write(`${text}\n`);
    }
  }

  /** Removes the progress line from the terminal and prints `text` to standard output. */
  print(text: string): void {
    if (this.isShown) process.stderr.write('\r\x1b[K');
    this.isShown = false;
    console.log(text);
  }
}
