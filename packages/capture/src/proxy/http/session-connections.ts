import { rm } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import { type Clock, FloeError } from '@floe-rl/core';
import { onResponseClosed } from './responses.ts';

/** Size in bytes of the kernel's buffer for the path of a Unix socket on Linux, which includes the terminating zero byte. */
const MAX_PATH_BYTES = 108;

/**
 * Maximum number of connections to a session's Unix socket. A harness has a handful of connections open. A program in the sandbox could
 * open thousands, and each takes one of the gateway's file descriptors, which all sessions share.
 */
const MAX_CONNECTIONS = 256;

/** Longest time in milliseconds that a closing session waits for its last responses to be sent before it closes their connections. */
const CLOSE_GRACE_MS = 1_000;

/** Manages the Unix socket of one session, and all unfinished responses of the session, including responses over TCP. */
export class SessionConnections {
  private readonly path: string | null;
  private readonly clock: Clock;
  private readonly server: Server;
  private readonly connections = new Set<Socket>();
  private readonly responses = new Set<ServerResponse>();

  /** `path` is the path of the Unix socket. When it is `null`, no socket is created. */
  constructor(path: string | null, clock: Clock) {
    this.path = path;
    this.clock = clock;
    this.server = createServer();
    this.server.maxConnections = MAX_CONNECTIONS;
  }

  /**
   * Creates the Unix socket and listens on it. A socket file that an earlier process left at its path is replaced. Rejects with
   * `setup_failed` when the socket cannot be created.
   */
  async listen(onConnection: (connection: Socket) => void): Promise<void> {
    const { path } = this;
    if (path === null) return;
    if (Buffer.byteLength(path) >= MAX_PATH_BYTES) {
      throw new FloeError('setup_failed', `the socket path is longer than ${MAX_PATH_BYTES - 1} bytes: ${path}`);
    }
    await rm(path, { force: true });
    this.server.on('connection', (connection) => {
      this.connections.add(connection);
      connection.once('close', () => this.connections.delete(connection));
      onConnection(connection);
    });
    await new Promise<void>((resolve, reject) => {
      this.server.once('error', (cause) => {
        reject(new FloeError('setup_failed', `cannot listen on ${path}: ${cause.message}`, {}, cause));
      });
      this.server.listen(path, resolve);
    });
  }

  addResponse(response: ServerResponse): void {
    this.responses.add(response);
    onResponseClosed(response, () => this.responses.delete(response));
  }

  /** Waits up to {@link CLOSE_GRACE_MS} for unfinished responses, then closes every connection and removes the socket file. */
  async close(): Promise<void> {
    await this.lastResponses();
    for (const response of this.responses) response.destroy();
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    for (const connection of this.connections) connection.destroy();
    await closed;
  }

  private lastResponses(): Promise<void> {
    const open = [...this.responses];
    if (open.length === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const cancel = this.clock.schedule(CLOSE_GRACE_MS, resolve);
      let unfinished = open.length;
      for (const response of open) {
        response.once('close', () => {
          if (--unfinished > 0) return;
          cancel();
          resolve();
        });
      }
    });
  }
}
