import type { IncomingMessage } from 'node:http';
import type { Clock } from '../../core/clock.ts';

/** Slower than any link that a task or a result is sent over. */
const LEAST_BYTES_PER_SECOND = 1024;

/**
 * Calls `cutOff` when the body of a request stands still, or trickles, for `idleMs`; returns the end of that. Without it a client
 * that sends a byte now and then holds a connection, and what has come so far, for ever.
 */
export function watchBody(request: IncomingMessage, clock: Clock, idleMs: number, cutOff: () => void): () => void {
  const { socket } = request;
  const least = (LEAST_BYTES_PER_SECOND * idleMs) / 1000;
  let seen = socket.bytesRead;
  let cancelTimer = (): void => {};
  const look = (): void => {
    if (request.complete || request.destroyed) return;
    if (socket.bytesRead - seen < least) {
      cutOff();
      return;
    }
    seen = socket.bytesRead;
    cancelTimer = clock.schedule(idleMs, look);
  };
  cancelTimer = clock.schedule(idleMs, look);
  return () => cancelTimer();
}

/** Whether the head of a request says that a body follows. */
export function hasBody(request: IncomingMessage): boolean {
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
  return encoding !== undefined || (length !== undefined && length !== '0');
}
