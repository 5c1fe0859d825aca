/*
 * Collects the chunks of one message. The box server in sandboxes uses it too, so this file imports nothing.
 */

const EMPTY = Buffer.alloc(0);
/** Size in bytes of the buffer that the second chunk of a message makes necessary. */
const FIRST_BYTES = 4 * 1024;

/**
 * Joins chunks as they arrive. A list of chunks would take hundreds of bytes for each. With it, a sender of single bytes could use up the
 * memory of the process without reaching the limit of bytes. This class takes at most twice the bytes that have arrived, or the memory of the
 * only chunk.
 */
export class GatheredBytes {
  private readonly maxBytes: number;
  private buffer: Buffer = EMPTY;
  private used = 0;
  /** Whether the buffer is the only chunk so far, which is not copied. */
  private isChunk = false;

  /** `maxBytes` is the length of the message, or its limit. The caller adds no more bytes. */
  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  /** Number of bytes that have arrived. */
  get length(): number {
    return this.used;
  }

  add(chunk: Buffer): void {
    if (chunk.length === 0) return;
    if (this.used === 0) {
      this.buffer = chunk;
      this.isChunk = true;
    } else {
      this.reserve(this.used + chunk.length);
      chunk.copy(this.buffer, this.used);
    }
    this.used += chunk.length;
  }

  /** Returns all bytes, and begins a new message. */
  take(): Buffer {
    const bytes = this.buffer.subarray(0, this.used);
    this.buffer = EMPTY;
    this.used = 0;
    this.isChunk = false;
    return bytes;
  }

  private reserve(bytes: number): void {
    if (!this.isChunk && bytes <= this.buffer.length) return;
    const doubled = Math.max(bytes, 2 * this.used, FIRST_BYTES);
    const grown = Buffer.allocUnsafeSlow(Math.max(bytes, Math.min(doubled, this.maxBytes)));
    this.buffer.copy(grown, 0, 0, this.used);
    this.buffer = grown;
    this.isChunk = false;
  }
}
