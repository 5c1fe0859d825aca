import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { FloeError } from '../../core/errors.ts';
import { dialectOf } from './routes.ts';

/**
 * Refuses an upgrade (WebSocket, h2c) and ends the connection, of which the server has let go. Harnesses that try WebSockets
 * first repeat the request as an ordinary one after this status.
 */
export function refuseUpgrade(request: IncomingMessage, socket: Duplex): void {
  const error = new FloeError(
    'upgrade_required',
    'only plain HTTP/1.1 is spoken here; repeat the request without an upgrade',
  );
  const { body } = dialectOf(request).encodeError(error);
  const head = [
    'HTTP/1.1 426 Upgrade Required',
    'Connection: close',
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
  ];
  socket.on('error', () => socket.destroy());
  // Such a socket would outlive the server with a client that keeps its side open.
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
}
