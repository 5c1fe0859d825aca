import { STATUS_CODES } from 'node:http';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { FloeError } from '../../core/errors.ts';
import type { ErrorReply } from '../../schema/index.ts';
import type { RolloutLog } from '../context.ts';

/** Seconds after which a client that was told to come back may do so. */
const RETRY_AFTER_SECONDS = 1;

export function errorBody(error: FloeError): ErrorReply {
  return {
    error: { code: error.code, message: error.message, details: { ...error.details }, retryable: error.retryable },
  };
}

/** Answers with the error's status and body. What was not raised on purpose is logged and shown as `internal` without its text. */
export function sendFailure(thrown: unknown, request: FastifyRequest, reply: FastifyReply, log: RolloutLog): void {
  const error = FloeError.is(thrown) ? thrown : fromFramework(thrown);
  if (error.code === 'internal') {
    log.error({ err: thrown, method: request.method, route: request.routeOptions.url ?? null }, 'a request failed');
  }
  if (error.status === 401) reply.header('www-authenticate', 'Bearer');
  if (error.status === 429 || error.status === 503) {
    const { retry_after_seconds: seconds = RETRY_AFTER_SECONDS } = error.details;
    reply.header('retry-after', String(seconds));
  }
  reply
    .status(error.status)
    .type('application/json')
    .send(JSON.stringify(errorBody(error)));
}

/** fastify marks what the client did wrong with a status of 4xx. */
function fromFramework(thrown: unknown): FloeError {
  const fields =
    typeof thrown === 'object' && thrown !== null ? (thrown as { statusCode?: unknown; message?: unknown }) : {};
  const message = typeof fields.message === 'string' ? fields.message : 'malformed request';
  if (fields.statusCode === 413) return new FloeError('body_too_large', 'the body exceeds the limit of this route');
  if (fields.statusCode === 503) return new FloeError('not_ready', 'the server is shutting down', {}, thrown);
  if (typeof fields.statusCode === 'number' && fields.statusCode >= 400 && fields.statusCode < 500) {
    return new FloeError('bad_request', message, {}, thrown);
  }
  return new FloeError('internal', 'a defect in floe; see the log of the server', {}, thrown);
}

type Refusable = { readonly writable: boolean; end(text: string): unknown; destroy(): unknown };

/** Answers where there is no request to answer, or not all of one, and closes the connection. */
export function refuseConnection(socket: Refusable, status: 400 | 408 | 431, message: string): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  // What came too slowly once may come in time the next time.
  const code = status === 408 ? 'deadline_exceeded' : 'bad_request';
  const body = JSON.stringify(errorBody(new FloeError(code, message)));
  const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\ncontent-type: application/json`;
  socket.end(`${head}\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`);
}
