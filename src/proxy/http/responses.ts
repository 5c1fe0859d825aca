import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** What is to be done when a connection closes: one listener for all responses that wait on it. */
const watched = new WeakMap<Socket, Set<() => void>>();

/**
 * Calls `gone` once: when the response is closed or its connection is, at once where that has happened. Node tells neither the
 * responses that a client's earlier ones keep waiting, nor those that nobody listened to when the connection closed.
 */
export function onceGone(response: ServerResponse, gone: () => void): void {
  const { socket } = response.req;
  if (response.destroyed || socket.destroyed) {
    gone();
    return;
  }
  const waiting = watched.get(socket) ?? watch(socket);
  const leave = (): void => {
    if (waiting.delete(leave)) gone();
  };
  waiting.add(leave);
  response.once('close', leave);
}

function watch(socket: Socket): Set<() => void> {
  const waiting = new Set<() => void>();
  watched.set(socket, waiting);
  socket.once('close', () => {
    for (const leave of waiting) leave();
  });
  return waiting;
}
