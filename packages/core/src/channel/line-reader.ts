import { GatheredBytes } from '../gathered-bytes.ts';

const NEWLINE = 0x0a;

/** Splits a stream of bytes into lines of a limited length. Its memory follows the bytes that have arrived, however they are split. */
export class LineReader {
  private readonly maxBytes: number;
  private readonly onLine: (line: Buffer) => void;
  private readonly separator: number;
  private readonly line: GatheredBytes;

  /** `separator` is the byte that ends a line. `onLine` gets the line without it. */
  constructor(maxBytes: number, onLine: (line: Buffer) => void, separator = NEWLINE) {
    this.maxBytes = maxBytes;
    this.onLine = onLine;
    this.separator = separator;
    this.line = new GatheredBytes(maxBytes);
  }

  /** Takes the next bytes. Returns false when a line is too long; the reader must then not be used any more. */
  push(chunk: Buffer): boolean {
    let start = 0;
    for (let end = chunk.indexOf(this.separator); end >= 0; end = chunk.indexOf(this.separator, start)) {
      if (!this.add(chunk.subarray(start, end))) return false;
      this.onLine(this.line.take());
      start = end + 1;
    }
    return this.add(chunk.subarray(start));
  }

  private add(part: Buffer): boolean {
    if (this.line.length + part.length > this.maxBytes) return false;
    this.line.add(part);
    return true;
  }
}
