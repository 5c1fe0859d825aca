import { FLOAT32_MAX_CHARS, writeFloat32, writeUint } from './float32.ts';

/** `-2147483648,` */
const INT32_MAX_CHARS = 12;
const COMMA = 0x2c;
const OPEN = 0x5b;
const CLOSE = 0x5d;
const MINUS = 0x2d;
const ZERO = 0x30;

/**
 * Writes JSON into one growing buffer. Columns of numbers are written digit by digit, with no array of strings or boxed
 * numbers in between; everything else is given as JSON text. What is written is up to the caller to be well-formed.
 */
export class JsonWriter {
  private bytes: Buffer;
  private length = 0;

  constructor(expectedBytes: number) {
    this.bytes = Buffer.allocUnsafe(Math.max(expectedBytes, 1024));
  }

  /** JSON text as it is. */
  raw(text: string): void {
    // A UTF-16 unit takes at most three bytes.
    this.reserve(text.length * 3);
    this.length += this.bytes.write(text, this.length, 'utf8');
  }

  value(value: unknown): void {
    this.raw(JSON.stringify(value));
  }

  /** JSON texts as the elements of an array. */
  texts(texts: readonly string[]): void {
    this.raw('[');
    for (let i = 0; i < texts.length; i++) {
      if (i > 0) this.raw(',');
      this.raw(texts[i] as string);
    }
    this.raw(']');
  }

  ints(values: Int32Array): void {
    this.reserve(values.length * INT32_MAX_CHARS + 2);
    const bytes = this.bytes;
    let at = this.length;
    bytes[at++] = OPEN;
    for (let i = 0; i < values.length; i++) {
      const value = values[i] as number;
      if (i > 0) bytes[at++] = COMMA;
      if (value < 0) bytes[at++] = MINUS;
      at = writeUint(bytes, at, Math.abs(value));
    }
    bytes[at++] = CLOSE;
    this.length = at;
  }

  /** Each as the shortest decimal that restores it; see {@link writeFloat32}. All must be finite. */
  floats(values: Float32Array): void {
    this.reserve(values.length * (FLOAT32_MAX_CHARS + 1) + 2);
    const bytes = this.bytes;
    let at = this.length;
    bytes[at++] = OPEN;
    for (let i = 0; i < values.length; i++) {
      if (i > 0) bytes[at++] = COMMA;
      at = writeFloat32(bytes, at, values[i] as number);
    }
    bytes[at++] = CLOSE;
    this.length = at;
  }

  /** Single-digit values. */
  digits(values: Uint8Array): void {
    this.reserve(values.length * 2 + 2);
    const bytes = this.bytes;
    let at = this.length;
    bytes[at++] = OPEN;
    for (let i = 0; i < values.length; i++) {
      if (i > 0) bytes[at++] = COMMA;
      bytes[at++] = ZERO + (values[i] as number);
    }
    bytes[at++] = CLOSE;
    this.length = at;
  }

  /** A view of what was written; the writer must not be used afterwards. */
  finish(): Buffer {
    return this.bytes.subarray(0, this.length);
  }

  private reserve(more: number): void {
    const needed = this.length + more;
    if (needed <= this.bytes.length) return;
    const grown = Buffer.allocUnsafe(Math.max(needed, this.bytes.length * 2));
    this.bytes.copy(grown, 0, 0, this.length);
    this.bytes = grown;
  }
}
