import type { OpenReply } from '../http-exchange.ts';

/** Data of the event that ends a stream. */
export const STREAM_END = Buffer.from('[DONE]');

/** Whether a reply is a stream of server-sent events. A server that does not stream answers with one JSON body instead. */
export function isEventStream({ headers }: OpenReply): boolean {
  return String(headers['content-type'] ?? '').startsWith('text/event-stream');
}

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const DATA_FIELD = Buffer.from('data:');
const SPACE = 0x20;
const NEWLINE = Buffer.from('\n');

/**
 * Extracts the data of each server-sent event from a stream of bytes, which may be split into chunks at any position. Lines may end with LF
 * or CRLF. Comments and fields other than `data` are skipped, and an event that is incomplete at the end of the stream is dropped.
 */
export class EventSplitter {
  /** The received pieces of a line whose end has not arrived yet. */
  private line: Buffer[] = [];
  private data: Buffer[] = [];

  /** Processes the next bytes and calls `onEvent` with the data of each event that they complete. */
  push(chunk: Buffer, onEvent: (data: Buffer) => void): void {
    let from = 0;
    for (;;) {
      const end = chunk.indexOf(LINE_FEED, from);
      if (end < 0) break;
      this.takeLine(this.completeLine(chunk.subarray(from, end)), onEvent);
      from = end + 1;
    }
    if (from < chunk.length) this.line.push(chunk.subarray(from));
  }

  private completeLine(last: Buffer): Buffer {
    if (this.line.length === 0) return last;
    const line = Buffer.concat([...this.line, last]);
    this.line = [];
    return line;
  }

  private takeLine(line: Buffer, onEvent: (data: Buffer) => void): void {
    const end = line.at(-1) === CARRIAGE_RETURN ? line.length - 1 : line.length;
    if (end === 0) {
      if (this.data.length === 0) return;
      const data = this.data.length === 1 ? (this.data[0] as Buffer) : joinLines(this.data);
      this.data = [];
      onEvent(data);
      return;
    }
    if (end < DATA_FIELD.length || line.compare(DATA_FIELD, 0, DATA_FIELD.length, 0, DATA_FIELD.length) !== 0) return;
    const start = line[DATA_FIELD.length] === SPACE ? DATA_FIELD.length + 1 : DATA_FIELD.length;
    this.data.push(line.subarray(start, Math.max(start, end)));
  }
}

function joinLines(lines: readonly Buffer[]): Buffer {
  return Buffer.concat(lines.flatMap((line, index) => (index === 0 ? [line] : [NEWLINE, line])));
}
