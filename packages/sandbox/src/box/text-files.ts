import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, opendir, realpath, rename, rm, stat } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';
import {
  type DirectoryEntry,
  type DirectoryListing,
  type FileText,
  ToolError,
  type ToolFailure,
} from '../api/tools.ts';
import { MAX_ENTRIES } from './tool-messages.ts';

const DEFAULT_FILE_MODE = 0o644;
/** Maximum size in bytes of a file that is edited, and of the part of a file that is read to find a line. */
const MAX_EDIT_BYTES = 16 * 1024 * 1024;
const MAX_SCAN_BYTES = 1024 * 1024 * 1024;
const CHUNK_BYTES = 256 * 1024;
const NEWLINE = 0x0a;

const FAILURES: Readonly<Record<string, ToolFailure>> = {
  ENOENT: 'not_found',
  ENOTDIR: 'not_a_directory',
  EISDIR: 'not_a_file',
};

export type LineRange = {
  /** Number of the first line, from 1. */
  readonly firstLine: number;
  /** Maximum number of lines; `null` for all. */
  readonly lineCount: number | null;
  readonly maxBytes: number;
};

/** Lines of a file as bytes. */
export type LinesOfFile = { readonly content: Buffer } & Omit<FileText, 'text'>;

/** Operations on files for tools. All reject with a {@link ToolError}. Runs in the sandbox. */
export class TextFiles {
  private readonly root: string | null;

  /**
   * `root` is the directory to which all paths are confined, after symbolic links are resolved; `null` in a sandbox with a root file system
   * of its own.
   */
  constructor(root: string | null) {
    this.root = root;
  }

  /** Reads lines of a regular file. */
  read(path: string, range: LineRange): Promise<LinesOfFile> {
    return failing(async () => {
      const handle = await this.openFile(path);
      try {
        return await readLines(handle, path, range);
      } finally {
        await handle.close();
      }
    });
  }

  /** Replaces a file by a new one with this content, and creates missing parent directories. The mode of an existing file is kept. */
  write(path: string, content: Buffer): Promise<void> {
    return failing(async () => {
      const target = await this.resolve(path);
      await this.makeDirectories(dirname(target));
      await this.replace(target, content);
    });
  }

  /** Replaces `oldText`, which must occur exactly once unless `replacesAll`. Resolves with the number of replacements. */
  edit(path: string, oldText: Buffer, newText: Buffer, replacesAll: boolean): Promise<number> {
    return failing(async () => {
      if (oldText.length === 0) throw new ToolError('no_match', 'the text to replace is empty');
      const target = await this.resolve(path);
      const handle = await this.openFile(path);
      let content: Buffer;
      try {
        const { size } = await handle.stat();
        if (size > MAX_EDIT_BYTES) throw new ToolError('too_large', `${path} is larger than ${MAX_EDIT_BYTES} bytes`);
        content = await handle.readFile();
      } finally {
        await handle.close();
      }
      const count = countOf(content, oldText);
      if (count === 0) throw new ToolError('no_match', `${path} does not contain the text`);
      if (count > 1 && !replacesAll) {
        throw new ToolError(
          'several_matches',
          `${path} contains the text ${count} times, so it must be longer to be unique`,
        );
      }
      if (content.length + count * (newText.length - oldText.length) > MAX_EDIT_BYTES) {
        throw new ToolError('too_large', `${path} would become larger than ${MAX_EDIT_BYTES} bytes`);
      }
      await this.replace(target, replaced(content, oldText, newText, count));
      return count;
    });
  }

  /**
   * Lists the entries of a directory in the order of their names. For a directory with more than {@link MAX_ENTRIES} entries, lists that many,
   * whichever the system returns first.
   */
  list(path: string): Promise<DirectoryListing> {
    return failing(async () => {
      const target = await this.resolve(path);
      const names: string[] = [];
      let isPartial = false;
      for await (const { name } of await opendir(target)) {
        isPartial = names.length === MAX_ENTRIES;
        if (isPartial) break;
        names.push(name);
      }
      names.sort();
      const entries = await Promise.all(names.map((name) => describe(join(target, name), name)));
      return { entries, isPartial };
    });
  }

  /** Opens a regular file for reading. Does not wait for a writer when the path is a FIFO. */
  private async openFile(path: string): Promise<FileHandle> {
    const target = await this.resolve(path);
    const info = await stat(target);
    if (!info.isFile()) throw new ToolError('not_a_file', `${path} is not a regular file`);
    const handle = await open(target, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW);
    if ((await handle.stat()).isFile()) return handle;
    await handle.close();
    throw new ToolError('not_a_file', `${path} is not a regular file`);
  }

  /** Writes a new file and renames it to `target`, so that `target` is never incomplete. */
  private async replace(target: string, content: Buffer): Promise<void> {
    const old = await lstat(target).catch(() => null);
    if (old !== null && !old.isFile()) throw new ToolError('not_a_file', `${target} is not a regular file`);
    const draft = join(dirname(target), `.floe-${randomBytes(8).toString('hex')}`);
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
    try {
      const handle = await open(draft, flags, 0o600);
      try {
        await handle.writeFile(content);
        if (old !== null) await handle.chown(old.uid, old.gid).catch(() => {});
        await handle.chmod(old === null ? DEFAULT_FILE_MODE : old.mode & 0o7777);
      } finally {
        await handle.close();
      }
      await rename(draft, target);
    } catch (error) {
      await rm(draft, { force: true });
      throw error;
    }
  }

  /**
   * Returns the path without symbolic links. If the path does not exist, the links of its existing parent directories are resolved. Throws a
   * {@link ToolError} (`outside`) when the path leads out of the root.
   */
  private async resolve(path: string): Promise<string> {
    const real = await realpath(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return null;
      throw error;
    });
    if (real !== null) {
      const root = this.root === null ? null : await realpath(this.root);
      if (root === null || real === root || real.startsWith(root + sep)) return real;
      throw new ToolError('outside', `${path} is outside the directory of the sandbox`);
    }
    if ((await lstat(path).catch(() => null)) !== null) {
      throw new ToolError('not_found', `${path} is a symbolic link to a file that does not exist`);
    }
    return join(await this.resolve(dirname(path)), path.slice(path.lastIndexOf(sep) + 1));
  }

  /** Creates a directory with its missing parents. */
  private async makeDirectories(path: string): Promise<void> {
    const info = await stat(path).catch(() => null);
    if (info?.isDirectory()) return;
    if (info !== null) throw new ToolError('not_a_directory', `${path} is not a directory`);
    await this.makeDirectories(dirname(path));
    await mkdir(path);
  }
}

/** Runs an operation, and turns errors of the file system into {@link ToolError}. */
async function failing<T>(operation: () => Promise<T>): Promise<T> {
  try {
    return await operation();
  } catch (error) {
    if (error instanceof ToolError) throw error;
    const { code = '', message } = error as NodeJS.ErrnoException;
    throw new ToolError(FAILURES[code] ?? 'failed', message);
  }
}

async function readLines(
  handle: FileHandle,
  path: string,
  { firstLine, lineCount, maxBytes }: LineRange,
): Promise<LinesOfFile> {
  const endLine = lineCount === null ? Number.POSITIVE_INFINITY : firstLine + lineCount;
  const parts: Buffer[] = [];
  /** Current line; number of kept bytes; number of kept bytes up to the end of the last complete line. */
  let [line, kept, complete] = [1, 0, 0];
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
  for (let scanned = 0; scanned < MAX_SCAN_BYTES; ) {
    const { bytesRead } = await handle.read(chunk, 0, CHUNK_BYTES, null);
    if (bytesRead === 0) return { content: Buffer.concat(parts), nextLine: null, isCut: false };
    scanned += bytesRead;
    for (let at = 0; at < bytesRead; ) {
      if (line >= endLine) return { content: Buffer.concat(parts), nextLine: line, isCut: false };
      const newline = chunk.subarray(0, bytesRead).indexOf(NEWLINE, at);
      const end = newline < 0 ? bytesRead : newline + 1;
      if (line >= firstLine) {
        // The chunk is reused for the next bytes, so they are copied.
        parts.push(Buffer.from(chunk.subarray(at, end)));
        kept += end - at;
        if (kept > maxBytes) return cutLines(Buffer.concat(parts), { line, complete, maxBytes });
        if (newline >= 0) complete = kept;
      }
      if (newline >= 0) line += 1;
      at = end;
    }
  }
  throw new ToolError('too_large', `${path}: the lines are not in the first ${MAX_SCAN_BYTES} bytes`);
}

/** Shortens lines to complete ones, or to the start of the first one when it is too long by itself. */
function cutLines(
  content: Buffer,
  { line, complete, maxBytes }: { line: number; complete: number; maxBytes: number },
): LinesOfFile {
  if (complete > 0) return { content: content.subarray(0, complete), nextLine: line, isCut: false };
  return { content: content.subarray(0, maxBytes), nextLine: line + 1, isCut: true };
}

async function describe(path: string, name: string): Promise<DirectoryEntry> {
  const info = await lstat(path).catch(() => null);
  if (info?.isFile()) return { name, type: 'file', bytes: info.size };
  if (info?.isDirectory()) return { name, type: 'directory', bytes: null };
  return { name, type: info?.isSymbolicLink() ? 'link' : 'other', bytes: null };
}

function countOf(content: Buffer, text: Buffer): number {
  let count = 0;
  for (let at = content.indexOf(text); at >= 0; at = content.indexOf(text, at + text.length)) count += 1;
  return count;
}

/** Replaces the `count` occurrences of `oldText`. */
function replaced(content: Buffer, oldText: Buffer, newText: Buffer, count: number): Buffer {
  const result = Buffer.alloc(content.length + count * (newText.length - oldText.length));
  let [from, to] = [0, 0];
  for (let at = content.indexOf(oldText); at >= 0; at = content.indexOf(oldText, from)) {
    to += content.copy(result, to, from, at);
    to += newText.copy(result, to);
    from = at + oldText.length;
  }
  content.copy(result, to, from);
  return result;
}
