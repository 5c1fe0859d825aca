import { rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { FloeError } from '../../core/errors.ts';

/** The kernel's limit for the path of a Unix socket, with its terminating zero. */
const MAX_PATH_BYTES = 108;

/**
 * A harness has a handful open. What runs in the sandbox could open thousands, and every one is a file descriptor of the
 * gateway, which all sessions share.
 */
export const MAX_CONNECTIONS = 256;

/** A Unix socket of one session; what is accepted there is handed on. */
export class SessionSocket {
  private readonly path: string;
  private readonly server: Server;
  private readonly connections = new Set<Socket>();

  constructor(path: string) {
    this.path = path;
    this.server = createServer();
    this.server.maxConnections = MAX_CONNECTIONS;
  }

  /** Replaces a socket file that a dead process left. Rejects with `setup_failed`. */
  async listen(onConnection: (connection: Socket) => void): Promise<void> {
    if (Buffer.byteLength(this.path) >= MAX_PATH_BYTES) {
      throw new FloeError('setup_failed', `the socket path is longer than ${MAX_PATH_BYTES - 1} bytes: ${this.path}`);
    }
    await rm(this.path, { force: true });
    this.server.on('connection', (connection) => {
      this.connections.add(connection);
      connection.once('close', () => this.connections.delete(connection));
      onConnection(connection);
    });
    await new Promise<void>((resolve, reject) => {
      this.server.once('error', (cause) => {
        reject(new FloeError('setup_failed', `cannot listen on ${this.path}: ${cause.message}`, {}, cause));
      });
      this.server.listen(this.path, resolve);
    });
  }

  /** Cuts every connection and removes the socket file. */
  async close(): Promise<void> {
    if (!this.server.listening) return;
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    for (const connection of this.connections) connection.destroy();
    await closed;
  }
}
