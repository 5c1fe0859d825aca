import { FloeError, MIB } from '@floe-rl/core';
import type { CompletionRequest } from '../../tokens/completion.ts';
import type { ImageUrls } from '../../tokens/images.ts';

/**
 * Limits the size of a session's record in bytes, as the journal writes it. A request whose new content does not fit into the record is
 * refused, and so is every later request. A request that fits, but not together with the requests of the running calls, is refused
 * temporarily. Replies are counted only when they are recorded, so the record may exceed the limit by the replies of the running calls.
 */
export class RecordLimit {
  /** The size of the record so far, in bytes. */
  bytes = 0;
  private readonly limitBytes: number;
  private readonly onLimit: () => void;
  /** Messages and lists of tools that the record contains. */
  private readonly recorded = new WeakSet<object>();
  private reservedBytes = 0;
  private isUsedUp = false;

  /** `onLimit` is called once, when the first request is refused permanently. */
  constructor(limitBytes: number, onLimit: () => void) {
    this.limitBytes = limitBytes;
    this.onLimit = onLimit;
  }

  /**
   * Reserves bytes for the part of a request that the record does not contain yet. `images` are the images of the request that are not
   * recorded yet. Returns a function that the caller must call once when the call has ended. Throws `record_limit` when the request does
   * not fit into the record, and `overloaded` when it does not fit together with the requests of the running calls.
   */
  reserve(request: CompletionRequest, images: ImageUrls): () => void {
    const bytes = this.newBytes(request, images);
    this.isUsedUp ||= this.bytes + bytes > this.limitBytes && this.reportLimit();
    if (this.isUsedUp) {
      // The error message must not resemble the error for an overlong prompt. Harnesses react to that error by compacting the conversation and
      // retrying.
      const details = { recorded_bytes: this.bytes, request_bytes: bytes, limit_bytes: this.limitBytes };
      const message = `this session is over: its model calls have used up the ${this.limitBytes / MIB} MiB of agent.max_recorded_mb`;
      throw new FloeError('record_limit', message, details);
    }
    if (this.bytes + this.reservedBytes + bytes > this.limitBytes) {
      throw new FloeError(
        'overloaded',
        'this request does not fit into agent.max_recorded_mb together with the requests of the running calls',
      );
    }
    this.reservedBytes += bytes;
    return () => {
      this.reservedBytes -= bytes;
    };
  }

  /** Counts a completion that has been recorded. `bytes` is the size of its record. */
  add(request: CompletionRequest, bytes: number): void {
    this.bytes += bytes;
    for (const message of request.messages) this.recorded.add(message);
    this.recorded.add(request.tools);
  }

  private newBytes({ messages, messageTexts, tools, toolsText }: CompletionRequest, images: ImageUrls): number {
    let bytes = this.recorded.has(tools) ? 0 : Buffer.byteLength(toolsText);
    messages.forEach((message, index) => {
      if (!this.recorded.has(message)) bytes += Buffer.byteLength(messageTexts[index] as string);
    });
    for (const url of images.values()) bytes += Buffer.byteLength(url);
    return bytes;
  }

  private reportLimit(): true {
    this.onLimit();
    return true;
  }
}
