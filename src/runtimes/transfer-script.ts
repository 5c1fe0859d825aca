/** Exit code of {@link READ_SCRIPT} for a path that is no regular file. */
export const NO_FILE = 44;

/** Prints the first bytes of a regular file. Arguments: path, count. Never opens a FIFO or a device. */
export const READ_SCRIPT = `[ -f "$1" ] || exit ${NO_FILE}; exec head -c "$2" -- "$1"`;

/** Unpacks a tar archive from stdin below a directory. An existing link in the way is replaced, not followed. */
export const EXTRACT_SCRIPT = 'umask 022; mkdir -p -- "$1" && exec tar -x -p -o -f - -C "$1"';

/**
 * Feeds a directory's files, directories and links, as a tar archive, to a command; anything else in it is left out.
 * Arguments: the directory, a file that gets the exit code if packing fails, the command.
 */
export const PACK_SCRIPT = `source=$1; report=$2; shift 2
pack() {
  cd "$source" && find . \\( -type f -o -type d -o -type l \\) -print0 |
    tar --create --null --no-recursion --files-from=- --file=-
}
{ pack || echo "$?" >"$report"; } | "$@"`;
