import { spawnSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';

export type SmallDisk = {
  readonly dir: string;
  /** Makes the disk read-only, as the kernel does after an I/O error. With `false`, makes it writable. */
  setReadOnly(readOnly: boolean): void;
  close(): Promise<void>;
};

/** Reason for skipping a test when {@link smallDisk} returns `null`. */
export const NO_SMALL_DISK =
  'no file system can be mounted here: run the tests as root in a container started with --cap-add SYS_ADMIN';

/** Mounts a file system of `bytes` bytes in memory. Returns `null` when this user may not mount file systems. */
export async function smallDisk(bytes: number): Promise<SmallDisk | null> {
  if (userInfo().uid !== 0) return null;
  const dir = await mkdtemp(join(tmpdir(), 'floe-disk-'));
  const mounted = mount('-t', 'tmpfs', '-o', `size=${bytes}`, 'tmpfs', dir);
  if (mounted !== null) {
    await rm(dir, { recursive: true });
    return null;
  }
  return {
    dir,
    setReadOnly: (readOnly) => {
      const failure = mount('-o', `remount,${readOnly ? 'ro' : 'rw'}`, dir);
      if (failure !== null) throw new Error(failure);
    },
    close: async () => {
      // The unmount is lazy: SQLite closes its files only when the statements of a closed connection are garbage-collected, so the files
      // may still be open.
      spawnSync('umount', ['--lazy', dir]);
      await rm(dir, { recursive: true, force: true });
    },
  };
}

function mount(...args: string[]): string | null {
  const { status, stderr, error } = spawnSync('mount', args, { encoding: 'utf8' });
  return status === 0 ? null : (error?.message ?? stderr);
}
