import type { IncomingMessage } from 'node:http';
import { type Clock, FloeError } from '@floe-rl/core';
import type { Counters } from '../status/counters.ts';

/**
 * Lowest transfer rate that a client may have while it sends a request body. Any connection that is fit to send tasks or results is faster.
 */
const MIN_BYTES_PER_SECOND = 1024;

/** Seconds after which a node may retry a refused delivery of a result. By then some of the results that were arriving have been stored. */
const RETRY_AFTER_SECONDS = 1;

/**
 * Calls `onStall` when the body of a request makes less progress than {@link MIN_BYTES_PER_SECOND} over `idleMs` milliseconds. Without
 * this, a client that sends a byte now and then would hold its connection, and the memory for the bytes that it has sent, indefinitely.
 * Returns a function that ends the observation.
 */
export function watchBody(request: IncomingMessage, clock: Clock, idleMs: number, onStall: () => void): () => void {
  const { socket } = request;
  const minBytes = (MIN_BYTES_PER_SECOND * idleMs) / 1000;
  let bytesBefore = socket.bytesRead;
  let cancelTimer = (): void => {};
  const check = (): void => {
    if (request.complete || request.destroyed) return;
    if (socket.bytesRead - bytesBefore < minBytes) {
      onStall();
      return;
    }
    bytesBefore = socket.bytesRead;
    cancelTimer = clock.schedule(idleMs, check);
  };
  cancelTimer = clock.schedule(idleMs, check);
  return () => cancelTimer();
}

/** Whether the head of a request announces a body. */
export function hasBody(request: IncomingMessage): boolean {
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
  return encoding !== undefined || (length !== undefined && length !== '0');
}

/**
 * Limits the bytes of delivered results that a server holds in memory, because after an outage all nodes deliver their results together.
 */
export class DeliveryBudget {
  private readonly maxBytes: number;
  private readonly counters: Counters;
  private heldBytes = 0;

  constructor(maxBytes: number, counters: Counters) {
    this.maxBytes = maxBytes;
    this.counters = counters;
  }

  /**
   * Reserves the size of a request's body, and returns a function that releases it. A result is always accepted when no other one is
   * arriving, however large it is. Throws `overloaded` when the budget is used up, and `bad_request` for a body of unknown length.
   */
  reserve({ headers }: IncomingMessage): () => void {
    if (headers['transfer-encoding'] !== undefined) {
      throw new FloeError('bad_request', 'a result must be sent with a content-length, not in chunks');
    }
    const bytes = Number(headers['content-length'] ?? 0);
    if (this.heldBytes > 0 && this.heldBytes + bytes > this.maxBytes) {
      this.counters.add('rate_limited');
      const message = `results of ${this.heldBytes} bytes are arriving, and another ${bytes} bytes would exceed max_delivering_mb; retry later`;
      throw new FloeError('overloaded', message, { retry_after_seconds: RETRY_AFTER_SECONDS });
    }
    this.heldBytes += bytes;
    return () => {
      this.heldBytes -= bytes;
    };
  }
}
