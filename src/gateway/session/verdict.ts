import type { ErrorCode, FloeError } from '../../core/errors.ts';

/** What the server says of a delivery itself. */
const OF_DELIVERIES: readonly ErrorCode[] = ['stale_epoch', 'cancelled', 'schema_violation', 'body_too_large'];
/** What it also says of routes, nodes and processes. */
const OF_SESSIONS: readonly ErrorCode[] = ['not_found', 'conflict'];

/**
 * Whether the server has judged a delivery, so that nobody will ever want it. Everything else (another token, a proxy in
 * between, a node id that was taken over) tells of the way to the server, which somebody may put right.
 */
export function isVerdict({ code, details }: FloeError): boolean {
  return OF_DELIVERIES.includes(code) || (OF_SESSIONS.includes(code) && typeof details.session_id === 'string');
}
