import { close, constants, open, write } from 'node:fs';
import { open as openHandle } from 'node:fs/promises';
import { dirname } from 'node:path';

/** A file that only grows. `append` resolves when the bytes are on the disk; after a rejection the file is not used again. */
export interface AppendFile {
  append(data: Buffer): Promise<void>;
  close(): Promise<void>;
}

export type OpenAppendFile = (path: string) => Promise<AppendFile>;

/**
 * Creates the file, which must not exist, and makes its directory entry durable. With O_DSYNC a write returns when its data is on
 * the disk: one trip to the thread pool instead of two with fdatasync. Calls go through callbacks, since the promise forms
 * cost several times as much on the path of every model call.
 */
export const openAppendFile: OpenAppendFile = async (path) => {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_APPEND | constants.O_DSYNC;
  const fd = await new Promise<number>((resolve, reject) => {
    open(path, flags, 0o600, (error, opened) => (error ? reject(error) : resolve(opened)));
  });
  const directory = await openHandle(dirname(path), 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
  return {
    append: (data) =>
      new Promise((resolve, reject) => {
        const writeFrom = (offset: number): void => {
          write(fd, data, offset, data.length - offset, null, (error, written) => {
            if (error) reject(error);
            else if (offset + written < data.length) writeFrom(offset + written);
            else resolve();
          });
        };
        writeFrom(0);
      }),
    close: () =>
      new Promise((resolve, reject) => {
        close(fd, (error) => (error ? reject(error) : resolve()));
      }),
  };
};
