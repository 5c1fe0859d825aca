/**
 * Collects a stream of unknown length in bounded memory: the first half and the last half of the budget are kept, what
 * lies between is counted and dropped.
 */
export class CappedOutput {
  private readonly headBytes: number;
  private readonly tailBytes: number;
  private head: Buffer[] = [];
  private headLength = 0;
  private tail: Buffer[] = [];
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
    const room = this.headBytes - this.headLength;
    const kept = chunk.subarray(0, room);
    if (kept.length > 0) {
      this.head.push(kept);
      this.headLength += kept.length;
    }
    if (chunk.length <= room) return;
    const rest = chunk.subarray(kept.length);
    this.tail.push(rest);
    this.tailLength += rest.length;
    this.trim();
  }

  /** Everything kept, in order. */
  bytes(): Buffer {
    return Buffer.concat([...this.head, ...this.tail]);
  }

  private trim(): void {
    let first = 0;
    while (this.tailLength > this.tailBytes) {
      const oldest = this.tail[first];
      if (oldest === undefined) break;
      const excess = Math.min(oldest.length, this.tailLength - this.tailBytes);
      this.dropped += excess;
      this.tailLength -= excess;
      if (excess === oldest.length) first++;
      else this.tail[first] = oldest.subarray(excess);
    }
    if (first > 0) this.tail.splice(0, first);
  }
}
