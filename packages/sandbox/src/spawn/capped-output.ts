/** Initial size in bytes of the buffer for the start of an output. Most outputs are shorter than this. */
const FIRST_BYTES = 16 * 1024;

/**
 * Collects a stream of unknown length in bounded memory. Keeps the start and the end of the stream, each in half of the allowed bytes; the
 * bytes in between are counted and dropped. Bytes are copied out of their chunks, so that many small chunks use no more memory than a few
 * large ones.
 */
export class CappedOutput {
  private readonly headBytes: number;
  private readonly tailBytes: number;
  private head: Buffer = Buffer.alloc(0);
  private headLength = 0;
  /**
   * Ring buffer for the end of the stream; `null` until the buffer for the start is full. The next byte is written at the index `ringAt`.
   */
  private ring: Buffer | null = null;
  private ringAt = 0;
  private tailLength = 0;
  private dropped = 0;

  constructor(maxBytes: number) {
    this.headBytes = Math.ceil(maxBytes / 2);
    this.tailBytes = Math.floor(maxBytes / 2);
  }

  get droppedBytes(): number {
    return this.dropped;
  }

  push(chunk: Buffer): void {
    const kept = Math.min(chunk.length, this.headBytes - this.headLength);
    this.reserve(this.headLength + kept);
    chunk.copy(this.head, this.headLength, 0, kept);
    this.headLength += kept;
    if (kept < chunk.length) this.pushTail(chunk.subarray(kept));
  }

  /** Returns the kept bytes in the order of the stream. */
  bytes(): Buffer {
    const parts = [this.head.subarray(0, this.headLength)];
    if (this.ring !== null) {
      const full = this.tailLength === this.tailBytes;
      if (full) parts.push(this.ring.subarray(this.ringAt));
      parts.push(this.ring.subarray(0, full ? this.ringAt : this.tailLength));
    }
    return Buffer.concat(parts);
  }

  private reserve(bytes: number): void {
    if (bytes <= this.head.length) return;
    const grown = Buffer.alloc(Math.min(this.headBytes, Math.max(bytes, 2 * this.head.length, FIRST_BYTES)));
    this.head.copy(grown, 0, 0, this.headLength);
    this.head = grown;
  }

  private pushTail(rest: Buffer): void {
    this.dropped += Math.max(0, this.tailLength + rest.length - this.tailBytes);
    this.tailLength = Math.min(this.tailBytes, this.tailLength + rest.length);
    if (this.tailBytes === 0) return;
    this.ring ??= Buffer.alloc(this.tailBytes);
    const last = rest.subarray(Math.max(0, rest.length - this.tailBytes));
    const first = last.copy(this.ring, this.ringAt);
    last.copy(this.ring, 0, first);
    this.ringAt = (this.ringAt + last.length) % this.tailBytes;
  }
}
