import { mkdir, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** Places of the Unix sockets at which sandboxes reach the proxy. */
export interface ProxySockets {
  /** Returns the path of the socket of the session `name`. */
  pathOf(name: string): string;
  /** Creates the directory of the socket, in which no other file may be. */
  createDirectory(socketPath: string): Promise<void>;
  /** Removes the directory of the socket with the socket. */
  removeDirectory(socketPath: string): Promise<void>;
}

/** Returns places below `root`. Each socket has a directory of its own, because containers mount the directory before the socket exists. */
export function proxySocketsIn(root: string): ProxySockets {
  return {
    // Unix socket paths are limited to about 107 bytes, so the file name is short.
    pathOf: (name) => join(root, name, 's'),
    createDirectory: async (socketPath) => void (await mkdir(dirname(socketPath), { recursive: true })),
    removeDirectory: (socketPath) => rm(dirname(socketPath), { recursive: true, force: true }),
  };
}
