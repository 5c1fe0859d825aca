import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import type { SandboxFile } from '../core/sandbox.ts';

export const DEFAULT_FILE_MODE = 0o644;

/** Exit code of {@link READ_SCRIPT} for a path that is not a regular file. */
export const NO_FILE = 44;

/** Prints the first bytes of a regular file. Arguments: path, count. Never opens a FIFO or a device. */
export const READ_SCRIPT = `[ -f "$1" ] || exit ${NO_FILE}; exec head -c "$2" -- "$1"`;

/** Unpacks a tar archive from stdin below a directory. An existing link at a target path is replaced, not followed. */
export const EXTRACT_SCRIPT = 'umask 022; mkdir -p -- "$1" && exec tar -x -p -o -f - -C "$1"';

/**
 * Pipes the files, directories and links below a directory to a command as a tar archive; anything else there is left out.
 * Arguments: the directory, a file that receives the exit code if packing fails, the command.
 */
export const PACK_SCRIPT = `source=$1; report=$2; shift 2
pack() {
  cd "$source" && find . \\( -type f -o -type d -o -type l \\) -print0 |
    tar --create --null --no-recursion --files-from=- --file=-
}
{ pack || echo "$?" >"$report"; } | "$@"`;

/**
 * A tar archive of regular files, named by their path without the leading slash. Modes are kept, owners are not. Long and
 * non-ASCII names are in pax headers, which GNU tar and busybox tar read.
 */
export function tarOf(files: readonly SandboxFile[], modifiedMs: number): Promise<Buffer> {
  const archive = pack();
  const mtime = new Date(modifiedMs);
  for (const { path, content, mode = DEFAULT_FILE_MODE } of files) {
    archive.entry({ name: path.replace(/^\/+/, ''), mode, mtime }, content);
  }
  archive.finalize();
  return buffer(archive);
}
