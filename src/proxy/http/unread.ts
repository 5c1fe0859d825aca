import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '../../core/clock.ts';

/** What a client that is still sending gets to notice that it was refused. */
export const UNREAD_LIMIT_MS = 2_000;

/**
 * Ends the response once the rest of the request has been thrown away, or after {@link UNREAD_LIMIT_MS}. A connection that is closed
 * with bytes unread is reset, and a client that is still writing would then never see the answer.
 */
export function endAfterUnread(request: IncomingMessage, response: ServerResponse, clock: Clock): void {
  const end = (): void => {
    cancel();
    response.end();
  };
  const cancel = clock.schedule(UNREAD_LIMIT_MS, end);
  request.on('error', end).once('end', end).once('close', end).resume();
}
