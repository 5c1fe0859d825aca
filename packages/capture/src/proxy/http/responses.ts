import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock, FloeError } from '@floe-rl/core';
import type { Dialect } from '../../dialects/dialect.ts';

/** A function that sends the body of a response and ends the response, after the headers were written. */
type EndResponse = (response: ServerResponse, body: string) => void;

const endWithBody: EndResponse = (response, body) => void response.end(body);

/** Sends an error in the form that the dialect defines. When the headers were already sent, it only ends the response, without a body. */
export function sendError(response: ServerResponse, dialect: Dialect, error: FloeError, end = endWithBody): void {
  if (response.headersSent) {
    response.end();
    return;
  }
  const { status, body } = dialect.encodeError(error);
  if (status === 429 || status === 503) response.setHeader('retry-after', retryAfterSeconds(error));
  sendJson(response, status, body, end);
}

export function sendJson(response: ServerResponse, status: number, body: string, end = endWithBody): void {
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
  // Node writes headers and body at once only when the body is a string.
  end(response, body);
}

function retryAfterSeconds(error: FloeError): number {
  const ms = error.details.retry_after_ms;
  return typeof ms === 'number' ? Math.max(1, Math.ceil(ms / 1000)) : 1;
}

/**
 * Maps each connection to the callbacks to call when it closes, so that all responses on one connection share a single `close` listener.
 */
const callbacksBySocket = new WeakMap<Socket, Set<() => void>>();

/**
 * Calls `callback` once when the response or its connection is closed, or immediately if that has already happened. The connection is
 * observed as well, because Node emits no `close` event for a response that is still queued after earlier responses of a pipelining client.
 */
export function onResponseClosed(response: ServerResponse, callback: () => void): void {
  const { socket } = response.req;
  if (response.destroyed || socket.destroyed) {
    callback();
    return;
  }
  const callbacks = callbacksBySocket.get(socket) ?? watchSocket(socket);
  const onClose = (): void => {
    if (callbacks.delete(onClose)) callback();
  };
  callbacks.add(onClose);
  response.once('close', onClose);
}

function watchSocket(socket: Socket): Set<() => void> {
  const callbacks = new Set<() => void>();
  callbacksBySocket.set(socket, callbacks);
  socket.once('close', () => {
    for (const callback of callbacks) callback();
  });
  return callbacks;
}

/**
 * Longest time in milliseconds for which the remaining body of a refused request is read, so that the client can still read the refusal.
 */
export const DRAIN_LIMIT_MS = 2_000;

/**
 * Ends the response once the rest of the request has been read and discarded, or after {@link DRAIN_LIMIT_MS}. Closing a connection with
 * unread bytes resets it, and a client that is still writing would then not receive the response.
 */
export function endAfterDraining(request: IncomingMessage, response: ServerResponse, clock: Clock): void {
  const end = (): void => {
    cancel();
    response.end();
  };
  const cancel = clock.schedule(DRAIN_LIMIT_MS, end);
  request.on('error', end).once('end', end).once('close', end).resume();
}
