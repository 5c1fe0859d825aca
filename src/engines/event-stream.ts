import type { OpenReply } from './http.ts';

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const DATA = Buffer.from('data:');
const SPACE = 0x20;
const NEWLINE = Buffer.from('\n');

/**
 * Splits the bytes of server-sent events into the data of each event, wherever the bytes are cut. Lines end with LF or CRLF;
 * comments and other fields than `data` are passed over; an event that the stream does not finish is not handed out.
 */
export class EventSplitter {
  /** The pieces of a line that has not ended yet. */
  private line: Buffer[] = [];
  private data: Buffer[] = [];

  /** Hands out each event that these bytes complete. */
  push(chunk: Buffer, onEvent: (data: Buffer) => void): void {
    let from = 0;
    for (;;) {
      const end = chunk.indexOf(LINE_FEED, from);
      if (end < 0) break;
      this.takeLine(this.wholeLine(chunk.subarray(from, end)), onEvent);
      from = end + 1;
    }
    if (from < chunk.length) this.line.push(chunk.subarray(from));
  }

  private wholeLine(last: Buffer): Buffer {
    if (this.line.length === 0) return last;
    const line = Buffer.concat([...this.line, last]);
    this.line = [];
    return line;
  }

  private takeLine(line: Buffer, onEvent: (data: Buffer) => void): void {
    const end = line.at(-1) === CARRIAGE_RETURN ? line.length - 1 : line.length;
    if (end === 0) {
      if (this.data.length === 0) return;
      const data = this.data.length === 1 ? (this.data[0] as Buffer) : joined(this.data);
      this.data = [];
      onEvent(data);
      return;
    }
    if (end < DATA.length || line.compare(DATA, 0, DATA.length, 0, DATA.length) !== 0) return;
    const start = line[DATA.length] === SPACE ? DATA.length + 1 : DATA.length;
    this.data.push(line.subarray(start, Math.max(start, end)));
  }
}

/** Whether the reply comes as events: a server that does not stream answers whole. */
export function isEventStream({ headers }: OpenReply): boolean {
  return String(headers['content-type'] ?? '').startsWith('text/event-stream');
}

function joined(lines: readonly Buffer[]): Buffer {
  return Buffer.concat(lines.flatMap((line, index) => (index === 0 ? [line] : [NEWLINE, line])));
}
