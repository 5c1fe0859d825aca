import { systemClock } from '../../src/core/clock.ts';

/** Pause between two lines of progress where standard error is no terminal. */
const PLAIN_INTERVAL_MS = 15_000;

/** One line of progress: rewritten in place on a terminal, printed every quarter of a minute elsewhere. */
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

  /** Prints a line of the result. */
  print(text: string): void {
    if (this.isShown) process.stderr.write('\r\x1b[K');
    this.isShown = false;
    console.log(text);
  }
}
