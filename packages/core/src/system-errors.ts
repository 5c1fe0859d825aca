import { randomUUID } from 'node:crypto';
import { accessSync, constants, existsSync, mkdirSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { FloeError } from './errors.ts';

/** Explanations of error codes of the operating system that a user of floe can cause and repair. */
const REASONS: Readonly<Record<string, string>> = {
  EACCES: 'permission denied',
  EDQUOT: 'the disk quota is used up',
  EIO: 'the disk reports an error',
  EISDIR: 'it is a directory',
  EMFILE: 'this process has too many open files; raise the limit with `ulimit -n`',
  ENAMETOOLONG: 'the path is too long',
  ENFILE: 'this machine has too many open files; raise the limit with `sysctl -w fs.file-max`',
  ENOENT: 'it does not exist',
  ENOSPC: 'the disk is full',
  ENOTDIR: 'a part of the path is not a directory',
  EPERM: 'not permitted',
  EROFS: 'the file system is read-only',
};

/** Verbs for system calls in messages. A system call without an entry is named as it is, because users know its name. */
const VERBS: Readonly<Record<string, string>> = {
  access: 'write to',
  copyfile: 'copy',
  lstat: 'read',
  mkdir: 'create',
  mkdtemp: 'create',
  rmdir: 'remove',
  scandir: 'read',
  stat: 'read',
  unlink: 'remove',
};

/** Texts for the message about an error of the operating system. */
type ErrorContext = {
  /** What the user can do, such as the option that chooses another directory. */
  readonly remedy?: string;
  /** The path that the message names. Default: the path of the error. Errors of writes contain no path. */
  readonly path?: string;
  /** The name of the operation that failed. Default: the name of the system call. */
  readonly verb?: string;
};

/**
 * Converts an error of the operating system about a file to `setup_failed`, with a message that names the path, the reason and the remedy.
 * Returns `null` for any other value, and for errors that are defects of floe or belong to a network connection.
 */
export function systemError(thrown: unknown, context: ErrorContext = {}): FloeError | null {
  if (!(thrown instanceof Error)) return null;
  const { code = '', syscall = '', dest, ...error } = thrown as NodeJS.ErrnoException & { dest?: string };
  const reason = REASONS[code];
  if (reason === undefined || syscall === '' || syscall === 'connect' || syscall === 'listen') return null;
  const path = context.path ?? error.path;
  const verb = context.verb ?? VERBS[syscall] ?? syscall;
  const what = path === undefined ? 'a file or the output' : `${path}${dest === undefined ? '' : ` to ${dest}`}`;
  const user = code === 'EACCES' || code === 'EPERM' ? ` for user ${userName()}` : '';
  const place = code === 'ENOSPC' ? freeSpace(dest ?? path) : '';
  const advice = context.remedy === undefined ? '' : `; ${context.remedy}`;
  const message = `cannot ${verb} ${what}: ${reason}${user}${place} (${code})${advice}`;
  return new FloeError('setup_failed', message, { path: path ?? null, code }, thrown);
}

/** Runs `work` and throws its errors about files as `setup_failed`, with the context. Other errors are thrown unchanged. */
export function withContext<T>(context: ErrorContext, work: () => T): T {
  try {
    return work();
  } catch (thrown) {
    throw systemError(thrown, context) ?? thrown;
  }
}

/** Bytes that are written to test whether a directory accepts files: one block of most file systems. */
const TEST_BYTES = Buffer.alloc(4096);

/**
 * Creates a directory that only its owner can read, unless it exists, and tests with a small file that this process can write to it. Throws
 * `setup_failed` with the path, the reason and `remedy`, which names the option or variable that chooses another directory.
 */
export function ensureWritableDir(path: string, remedy: string): void {
  withContext({ remedy, path, verb: 'write to' }, () => {
    // Node reports the creation of directories on a read-only file system as ENOENT, so the nearest directory that exists is checked first.
    accessSync(nearestExisting(path), constants.W_OK | constants.X_OK);
    mkdirSync(path, { recursive: true, mode: 0o700 });
    const test = join(path, `.write-test-${randomUUID()}`);
    try {
      writeFileSync(test, TEST_BYTES);
    } finally {
      rmSync(test, { force: true });
    }
  });
}

/** Returns the path itself when it exists, and otherwise the nearest directory above it that does. */
function nearestExisting(path: string): string {
  let dir = resolve(path);
  while (!existsSync(dir) && dir !== dirname(dir)) dir = dirname(dir);
  return dir;
}

/** Creates an empty directory for temporary files and returns its path. Throws `setup_failed` when none can be created. */
export function makeTempDir(prefix: string): string {
  return withContext({ remedy: 'set TMPDIR to a directory that you can write to' }, () =>
    mkdtempSync(join(tmpdir(), prefix)),
  );
}

/** Returns the number of bytes that this user may still write to the disk of `path`; `null` when the system does not report it. */
export function freeBytes(path: string): number | null {
  try {
    const { bavail, bsize, blocks } = statfsSync(nearestExisting(path));
    return blocks === 0 ? null : bavail * bsize;
  } catch (error) {
    if (systemError(error) === null) throw error;
    return null;
  }
}

function freeSpace(path: string | undefined): string {
  const bytes = path === undefined ? null : freeBytes(path);
  return bytes === null ? '' : `, with ${Math.floor(bytes / 1_000_000)} MB free`;
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    // The user has an id but no entry in the user database, which is usual in containers.
    return String(process.getuid?.() ?? 'unknown');
  }
}
