const NEWLINE = 0x0a;

/** Splits a stream of bytes into lines. */
export class LineReader {
  private readonly maxBytes: number;
  private readonly onLine: (line: Buffer) => void;
  private parts: Buffer[] = [];
  private size = 0;

  constructor(maxBytes: number, onLine: (line: Buffer) => void) {
    this.maxBytes = maxBytes;
    this.onLine = onLine;
  }

  /** Takes the next bytes. Returns false when a line is too long. */
  push(chunk: Buffer): boolean {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      const line = Buffer.concat([...this.parts, chunk.subarray(start, end)]);
      if (line.length > this.maxBytes) return false;
      this.parts = [];
      this.size = 0;
      this.onLine(line);
      start = end + 1;
    }
    const rest = chunk.subarray(start);
    this.parts.push(rest);
    this.size += rest.length;
    return this.size <= this.maxBytes;
  }
}
