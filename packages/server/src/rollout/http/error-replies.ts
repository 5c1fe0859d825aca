import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import { FloeError } from '@floe-rl/core';
import type { ErrorReply } from '@floe-rl/core/schema';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { RolloutLog } from '../context.ts';

/** Seconds in the `retry-after` header of the reply to an error that does not specify them. */
const RETRY_AFTER_SECONDS = 1;

function errorBody(error: FloeError): ErrorReply {
  return {
    error: { code: error.code, message: error.message, details: { ...error.details }, retryable: error.retryable },
  };
}

/**
 * Answers with the error's status and body. With `withDetail`, the body also has the message as `detail`, where clients of FastAPI servers
 * expect it. An unexpected error is logged, and answered as `internal` without its message.
 */
export function sendError(
  thrown: unknown,
  request: FastifyRequest,
  reply: FastifyReply,
  log: RolloutLog,
  withDetail = false,
): void {
  const error = FloeError.is(thrown) ? thrown : errorFromFastify(thrown);
  if (error.code === 'internal') {
    log.error(
      { err: thrown, method: request.method, route: request.routeOptions.url ?? null },
      'a request failed because of a defect',
    );
  }
  if (error.status === 401) reply.header('www-authenticate', 'Bearer');
  if (error.status === 429 || error.status === 503) {
    const { retry_after_seconds: seconds = RETRY_AFTER_SECONDS } = error.details;
    reply.header('retry-after', String(seconds));
  }
  reply
    .status(error.status)
    .type('application/json')
    .send(JSON.stringify(withDetail ? { detail: error.message, ...errorBody(error) } : errorBody(error)));
}

/** Converts an error that fastify threw. fastify gives its errors a status code: 4xx for a mistake of the client, 503 while it closes. */
function errorFromFastify(thrown: unknown): FloeError {
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

/**
 * Answers 417 to a request with an `Expect` header that is not `100-continue`. Node's own answer has no body. The connection is closed,
 * because the body of the request is not read.
 */
export function refuseExpectation(_: IncomingMessage, response: ServerResponse): void {
  const body = JSON.stringify(errorBody(new FloeError('bad_request', 'only `Expect: 100-continue` is supported')));
  response.writeHead(417, { connection: 'close', 'content-type': 'application/json' }).end(body);
}

/** The part of a socket that {@link refuseConnection} needs. */
type Refusable = { readonly writable: boolean; end(text: string): unknown; destroy(): unknown };

/** Answers a connection that has not sent a complete request, and closes it. */
export function refuseConnection(socket: Refusable, status: 400 | 408 | 431, message: string): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  // A request that was too slow may succeed when it is retried, so it gets a retryable code.
  const code = status === 408 ? 'deadline_exceeded' : 'bad_request';
  const body = JSON.stringify(errorBody(new FloeError(code, message)));
  const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\ncontent-type: application/json`;
  socket.end(`${head}\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`);
}
