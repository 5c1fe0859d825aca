import { randomBytes } from 'node:crypto';
import { mkdir, open, rm } from 'node:fs/promises';
import { dirname, join, posix } from 'node:path';
import { FloeError, MIB, raceAbort } from '@floe-rl/core';
import type { ExecRequest, ExecResult, RuntimeSnapshot } from '../../api/runtime.ts';
import { type BoxConnection, partsOfFile, requireDone } from '../../box/connection.ts';
import { releasedError } from '../command-turns.ts';

/** Directory in the sandbox of the archive while it is sent. */
const ARCHIVE_DIR = '/tmp';
/** Number of bytes of the archive that are read at once from a sandbox. */
const PART_BYTES = MIB;
/** Maximum number of characters of a failed command's error output that the error message quotes. */
const STDERR_CHARS = 500;

/** Shell script that packs a directory into an archive. Arguments: the directory, the archive. */
const PACK_SCRIPT = 'exec tar -c -f "$2" -C "$1" .';

/** Shell script that empties a directory and unpacks an archive into it. Arguments: the directory, the archive. */
const UNPACK_SCRIPT = `set -e
[ -d "$1" ] && [ ! -L "$1" ] || rm -rf -- "$1"
mkdir -p -- "$1"
cd "$1"
for path in ./* ./.[!.]* ./..?*; do
  if [ -e "$path" ] || [ -L "$path" ]; then chmod -R u+rwx -- "$path" 2>/dev/null || :; rm -rf -- "$path"; fi
done
tar -x -p -f "$2"
rm -f -- "$2"`;

/** The sandbox that a snapshot is taken from or restored to. */
export type SnapshotBox = {
  readonly name: string;
  readonly workdir: string;
  readonly connection: BoxConnection;
  /** Runs a command in the sandbox. */
  readonly exec: (request: ExecRequest) => Promise<ExecResult>;
  /** Aborted to stop the work. A box server that an agent has stopped answers nothing. */
  readonly signal: AbortSignal;
};

/** An archive on the host with the files of a workdir. */
export class BoxSnapshot implements RuntimeSnapshot {
  readonly backend: RuntimeSnapshot['backend'];
  readonly sandbox: string;
  readonly bytes: number;
  private readonly archive: string;
  private released: Promise<void> | null = null;

  constructor(backend: RuntimeSnapshot['backend'], sandbox: string, bytes: number, archive: string) {
    this.backend = backend;
    this.sandbox = sandbox;
    this.bytes = bytes;
    this.archive = archive;
  }

  /** Returns the path of the archive. Throws `runtime_failed` when the snapshot was released. */
  get path(): string {
    if (this.released !== null) throw releasedError(this);
    return this.archive;
  }

  release(): Promise<void> {
    this.released ??= rm(this.archive, { force: true }).catch(() => {});
    return this.released;
  }
}

/**
 * Copies the files of a workdir to an archive in the directory `dir` of the host. Returns the path of the archive and its size. Rejects with
 * the reason of the signal, or with `runtime_failed`, for example when the archive is larger than `maxBytes`. After a rejection no archive is
 * left.
 */
export async function packWorkdir(
  box: SnapshotBox,
  dir: string,
  maxBytes: number,
): Promise<{ readonly path: string; readonly bytes: number }> {
  const inside = newArchivePath();
  const path = join(dir, `${box.name}-${randomBytes(9).toString('hex')}.tar`);
  await mkdir(dir, { recursive: true, mode: 0o700 });
  try {
    const { connection, workdir, signal } = box;
    const found = connection.askFiles({ type: 'check_directory', path: workdir, owner: null });
    requireDone(await raceAbort(found, signal), workdir);
    await runScript(box, PACK_SCRIPT, inside, 'pack its workdir');
    const handle = await open(path, 'wx', 0o600);
    let bytes = 0;
    try {
      for (let part = await readPart(box, inside, 0); part.length > 0; part = await readPart(box, inside, bytes)) {
        bytes += part.length;
        if (bytes > maxBytes) {
          throw new FloeError('runtime_failed', `the workdir of ${box.name} takes up more than ${maxBytes} bytes`);
        }
        await handle.writeFile(part);
      }
    } finally {
      await handle.close();
    }
    return { path, bytes };
  } catch (error) {
    await rm(path, { force: true });
    throw error;
  } finally {
    await box.exec({ command: ['rm', '-f', '--', inside], cwd: '/' }).catch(() => {});
  }
}

/**
 * Replaces the files of a workdir by the content of the archive `path` on the host. Rejects with `runtime_failed`, or with the reason of the
 * signal.
 */
export async function unpackWorkdir(box: SnapshotBox, path: string): Promise<void> {
  const inside = newArchivePath();
  const { connection, workdir, signal } = box;
  const parent = posix.dirname(workdir);
  const created = connection.askFiles({ type: 'create_directory', path: parent, mode: 0o755, owner: null });
  requireDone(await raceAbort(created, signal), parent);
  await raceAbort(connection.writeFile(inside, { mode: 0o600, owner: null }, partsOfFile(path)), signal);
  await runScript(box, UNPACK_SCRIPT, inside, 'restore its workdir');
}

/** Returns the directory of the snapshots of a back end, beside the directory of a sandbox. */
export function snapshotDir(sandboxDir: string): string {
  return join(dirname(sandboxDir), '.snapshots');
}

function newArchivePath(): string {
  return `${ARCHIVE_DIR}/.floe-${randomBytes(9).toString('hex')}.tar`;
}

async function readPart({ connection, signal }: SnapshotBox, path: string, offset: number): Promise<Buffer> {
  const asked = connection.askFiles({ type: 'read_part', path, offset, maxBytes: PART_BYTES });
  const { reply, content } = await raceAbort(asked, signal);
  if (reply.type === 'file_done') return content;
  throw new FloeError('runtime_failed', `the sandbox could not read ${path}: ${reply.type}`, { path });
}

async function runScript(box: SnapshotBox, script: string, archive: string, action: string): Promise<void> {
  const { exitCode, stderr } = await box.exec({
    command: ['/bin/sh', '-c', script, 'sh', box.workdir, archive],
    cwd: '/',
  });
  if (exitCode === 0) return;
  const why = stderr.trim().slice(-STDERR_CHARS);
  throw new FloeError('runtime_failed', `sandbox ${box.name} could not ${action}: ${why}`, { stderr: why });
}
