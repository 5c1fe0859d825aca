import type { WriteStream } from 'node:tty';

const ESC = '\u001b';
/**
 * Control sequences of xterm that open the alternate screen, hide the cursor and turn off line wrapping. A terminal ignores sequences that it
 * does not know.
 */
const OPEN = `${ESC}[?1049h${ESC}[?25l${ESC}[?7l`;
const CLOSE = `${ESC}[?7h${ESC}[?25h${ESC}[?1049l`;
/** Between these the terminal shows no intermediate state. */
const BEGIN_FRAME = `${ESC}[?2026h${ESC}[H`;
const END_FRAME = `${ESC}[?2026l`;
const CLEAR_TO_END_OF_LINE = `${ESC}[K`;
const CLEAR_BELOW = `${ESC}[J`;

/** Returns the terminal on standard output on which a screen can be shown; `null` for a file, a pipe and a terminal without a cursor. */
export function terminal(): WriteStream | null {
  return process.stdout.isTTY === true && process.env.TERM !== 'dumb' ? process.stdout : null;
}

/**
 * The whole window of a terminal. The earlier content of the window is restored at the end. Lines that are longer than the window are cut,
 * because the terminal does not wrap them; lines below the window are counted in its last line.
 */
export class Screen {
  private readonly output: WriteStream;
  private lines: readonly string[] = [];
  private shown = '';
  private isOpen = true;
  private readonly restore = (): void => this.close();
  private readonly onResize = (): void => {
    this.shown = '';
    this.paint();
  };

  constructor(output: WriteStream) {
    this.output = output;
    output.write(OPEN);
    output.on('resize', this.onResize);
    process.once('exit', this.restore);
  }

  /** Shows these lines in place of the earlier ones. */
  draw(lines: readonly string[]): void {
    this.lines = lines;
    this.paint();
  }

  /** Restores the earlier content of the terminal. May be called more than once. */
  close(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.output.off('resize', this.onResize);
    process.off('exit', this.restore);
    this.output.write(CLOSE);
  }

  private paint(): void {
    if (!this.isOpen) return;
    const { rows } = this.output;
    const hidden = this.lines.length - rows;
    const fitting =
      hidden > 0 ? [...this.lines.slice(0, rows - 1), `${hidden + 1} more lines in a taller window`] : this.lines;
    // The rest of a line is cleared before its text is written. Afterwards, the cursor could be on the last character of a cut line and clear
    // it.
    const clear = (index: number): string => (index === fitting.length - 1 ? CLEAR_BELOW : CLEAR_TO_END_OF_LINE);
    const frame = fitting.map((line, index) => clear(index) + line).join('\r\n');
    if (frame === this.shown) return;
    this.shown = frame;
    this.output.write(`${BEGIN_FRAME}${frame}${END_FRAME}`);
  }
}
