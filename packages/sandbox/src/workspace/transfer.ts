import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import type { SandboxFile } from '../api/files.ts';

export const DEFAULT_FILE_MODE = 0o644;

/** Exit code of {@link READ_SCRIPT} when the path is not a regular file. */
export const NO_FILE = 44;

/** Shell script that prints the first bytes of a regular file. Never opens a FIFO or a device. Arguments: path, number of bytes. */
export const READ_SCRIPT = `[ -f "$1" ] || exit ${NO_FILE}; exec head -c "$2" -- "$1"`;

/**
 * Shell script that unpacks a tar archive from stdin into a directory. It replaces an existing link at a path of the archive and does not
 * follow the link. Argument: the directory.
 */
export const EXTRACT_SCRIPT = 'umask 022; mkdir -p -- "$1" && exec tar -x -p -o -f - -C "$1"';

/**
 * Shell script that packs the files, directories and symbolic links below a directory as a tar archive and pipes the archive to a command.
 * Files of other kinds are left out. Arguments: the directory, the path of a report file, and the command. When packing fails, the script
 * writes the exit code of the packing to the report file.
 */
export const PACK_SCRIPT = `source=$1; report=$2; shift 2
pack() {
  cd "$source" && find . \\( -type f -o -type d -o -type l \\) -print0 |
    tar --create --null --no-recursion --files-from=- --file=-
}
{ pack || echo "$?" >"$report"; } | "$@"`;

/**
 * Returns a tar archive of regular files, named by their path without the leading slash. File modes are kept, owners are not. Long and
 * non-ASCII names are stored in pax headers, which GNU tar and busybox tar can read.
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
