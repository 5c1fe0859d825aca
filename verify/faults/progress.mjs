// One line that is rewritten on a terminal, and now and then a plain one elsewhere.
/** Where nobody watches, a line every so often is enough. */
const PLAIN_EVERY_MS = 15_000;

export class Progress {
  constructor() {
    this.lastPlainMs = 0;
    this.shown = false;
  }

  show(text) {
    if (process.stderr.isTTY) {
      process.stderr.write(`\r\x1b[K${text}`);
      this.shown = true;
    } else if (performance.now() - this.lastPlainMs > PLAIN_EVERY_MS) {
      this.lastPlainMs = performance.now();
      process.stderr.write(`${text}\n`);
    }
  }

  done(text) {
    if (this.shown) process.stderr.write('\r\x1b[K');
    this.shown = false;
    console.log(text);
  }
}
