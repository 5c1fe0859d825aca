import { posix } from 'node:path';
import { KIB, MIB } from '@floe-rl/core';
import type { ExecResult, Runtime } from '../api/runtime.ts';

/**
 * Maximum number of characters of the stored reason why artifacts of a session are missing. The agent can influence this text, and it is
 * stored in a database row, so it must stay short.
 */
const REASON_CHARS = 600;
/**
 * Highest exit code of `tar` that counts as a warning. After a warning the archive contains every file that `tar` could read, but some
 * files were unreadable.
 */
const MAX_TAR_WARNING_CODE = 2;
/** The first two bytes of every gzip stream. */
const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);
/**
 * Size in bytes of a gzip stream of empty input. An archive of this size contains no file: the archive of one empty file is more than three
 * times as large.
 */
const EMPTY_GZIP_BYTES = 20;
/**
 * Maximum number of characters of the packing script's output that are read. The genuine output is a few lines; an agent can replace the
 * programs that print it.
 */
const REPORT_CHARS = 16 * KIB;

/** Start of the names of the temporary folders of archives, which stay in the sandbox. */
export const ARCHIVE_PREFIX = 'floe-artifacts-';

/**
 * Shell script that packs the directories `artifacts` and `logs` of a folder, and further paths below this folder, into one compressed tar
 * archive. Its arguments are the folder, the maximum number of bytes of the archive, and the further paths relative to the folder.
 *
 * The script prints its results to stdout, one `word value` pair per line. The results are the indexes of further paths that do not exist, the
 * exit code of each program, and the archive's size and path.
 *
 * Only files, directories and symbolic links (as links) are packed. Files of other kinds, such as FIFOs, are never opened, and file systems
 * that are mounted below the packed directories are not entered.
 *
 * The script creates a temporary folder with symbolic links to the packed directories and runs `tar` in it. The names in the archive are then
 * the same with every version of `tar`. The archive contains the linked directories and not the temporary links.
 */
const PACK_SCRIPT = `base=\${1%/}; limit=$2; shift 2
cd "$base/" && stage=$(mktemp -d "\${TMPDIR:-/tmp}/${ARCHIVE_PREFIX}XXXXXX") || exit 1
own=\${stage##*/}
index=0
for path in "$@"; do
  shift
  if [ -e "$base/$path" ] || [ -L "$base/$path" ]; then set -- "$@" "paths/$path"; else echo "missing $index"; fi
  index=$((index + 1))
done
[ $# -eq 0 ] || ln -s "$base/" "$stage/paths" || exit 1
for name in artifacts logs; do
  if [ -d "$name" ] && [ ! -L "$name" ]; then set -- "$@" "$name/"; ln -s "$base/$name" "$stage/" || exit 1; fi
done
cd "$stage" || exit 1
first=
[ $# -eq 0 ] || first=$(find "$@" -xdev -name "$own" -prune -o \\( -type f -o -type l \\) -print 2>/dev/null | head -c 1)
[ -n "$first" ] || { echo 'empty 1'; exit 0; }
pack() {
  case $(tar --version 2>/dev/null) in
    *GNU*)
      find "$@" -xdev -name "$own" -prune -o ! -path '*/' \\( -type f -o -type d -o -type l \\) -print0 |
        tar --create --format=gnu --sparse --numeric-owner --mode=ug-s --null --no-recursion --files-from=- --file=- ;;
    *)
      for path in "$@"; do
        shift
        case $path in */) set -- "$@" "$path." ;; *) set -- "$@" "$path" ;; esac
      done
      tar -c -f - "$@" ;;
  esac
}
exec 3>&1
{ pack "$@"; echo "tar $?" >&3; } | { gzip -c; echo "gzip $?" >&3; } | head -c "$limit" >packed
echo "head $?"
echo "bytes $(wc -c <packed)"
echo "archive $stage/packed"`;

export type CollectRequest = {
  /** Maximum number of bytes of the compressed archive. */
  readonly maxBytes: number;
  /** Paths in the sandbox to pack in addition to the artifacts and the logs. Relative paths are resolved against the workdir. */
  readonly paths: readonly string[];
};

export type Collected = {
  /** The tar archive, compressed with gzip, with names below `artifacts/`, `logs/` and `paths/`; `null` when no archive was made. */
  readonly archive: Buffer | null;
  /** Which files the archive lacks and why, or why no archive was made; `null` when the archive is complete. */
  readonly omitted: string | null;
};

/**
 * Packs the artifacts, the logs and the requested further paths of a sandbox into one archive. Resolves with `null` when there is no file
 * to pack and every requested path exists. Rejects with the errors of `Runtime.exec` and `Runtime.readFile`. The agent controls the size of
 * the file tree, so the time of packing is bounded only by the abort of `signal`. The sandbox needs `tar`, `gzip`, `find`, `head`,
 * `mktemp`, `ln` and `wc`, and disk space for the archive.
 */
export async function collect(
  runtime: Runtime,
  request: CollectRequest,
  signal: AbortSignal,
): Promise<Collected | null> {
  const base = posix.dirname(runtime.paths.artifacts);
  const paths = request.paths.map((given) => ({ given, path: pathBelow(base, runtime.paths.workdir, given) }));
  const inside = paths.flatMap(({ given, path }) => (path === null ? [] : [{ given, path }]));
  const numbers = [base, String(request.maxBytes + 1)];
  const command = ['/bin/sh', '-c', PACK_SCRIPT, 'floe-collect', ...numbers, ...inside.map(({ path }) => path)];
  const ended = await runtime.exec({ command, cwd: base, env: { LC_ALL: 'C' } }, signal);
  const report = parseReport(ended.stdout.slice(0, REPORT_CHARS));
  const notes = paths.flatMap(({ given, path }) => (path === null ? [`${given} is not in the sandbox`] : []));
  for (const index of report.get('missing') ?? []) notes.push(`${inside[Number(index)]?.given} does not exist`);
  let archive: Buffer | null = null;
  if (!report.has('empty')) {
    const problem = packingProblem(ended, report, request.maxBytes);
    archive = problem === null ? await readArchive(runtime, report, request.maxBytes, signal) : null;
    if (problem !== null) notes.push(problem);
    else if (archive === null) notes.push('the sandbox packed something that is not an archive');
    else if (numberOf(report, 'tar') !== 0) notes.push(firstErrors(ended.stderr));
  }
  if (archive === null && notes.length === 0) return null;
  return { archive, omitted: notes.length === 0 ? null : notes.join('; ').slice(0, REASON_CHARS) };
}

/**
 * Resolves the path `given` against `workdir` and returns it relative to the folder `base`. Returns an empty string for `base` itself, and
 * `null` for a path outside of `base`.
 */
function pathBelow(base: string, workdir: string, given: string): string | null {
  const path = posix.relative(base, posix.resolve(workdir, given));
  return path === '..' || path.startsWith('../') ? null : path;
}

type Report = ReadonlyMap<string, readonly string[]>;

/** Parses the lines `word value` that {@link PACK_SCRIPT} printed. Returns all values of each word. */
function parseReport(stdout: string): Report {
  const report = new Map<string, string[]>();
  for (const line of stdout.split('\n')) {
    const [word = '', ...rest] = line.split(' ');
    const values = report.get(word);
    if (values === undefined) report.set(word, [rest.join(' ').trim()]);
    else values.push(rest.join(' ').trim());
  }
  return report;
}

/**
 * Returns the first value that {@link PACK_SCRIPT} printed for `word`, as a number; NaN when the script ended before it printed this word.
 */
function numberOf(report: Report, word: string): number {
  return Number.parseInt(report.get(word)?.[0] ?? '', 10);
}

/** Returns the reason why {@link PACK_SCRIPT} made no usable archive; `null` when it made one. */
function packingProblem(ended: ExecResult, report: Report, maxBytes: number): string | null {
  const bytes = numberOf(report, 'bytes');
  const tar = numberOf(report, 'tar');
  const because = `: ${firstErrors(ended.stderr)}`;
  if (ended.killedBy !== null) return `packing exceeded the limit on ${ended.killedBy}`;
  if (Number.isNaN(bytes)) return `packing ended with exit code ${ended.exitCode}${because}`;
  if (bytes > maxBytes) return `the archive is larger than the ${maxBytes / MIB} MiB of artifacts.max_mb`;
  if (numberOf(report, 'head') !== 0) return `the archive could not be written${because}`;
  if (numberOf(report, 'gzip') !== 0) return `gzip ended with exit code ${numberOf(report, 'gzip')}${because}`;
  if (!(tar <= MAX_TAR_WARNING_CODE) || (tar !== 0 && bytes <= EMPTY_GZIP_BYTES))
    return `tar ended with exit code ${tar}${because}`;
  return null;
}

async function readArchive(
  runtime: Runtime,
  report: Report,
  maxBytes: number,
  signal: AbortSignal,
): Promise<Buffer | null> {
  const bytes = await runtime.readFile(report.get('archive')?.[0] ?? '', maxBytes, signal);
  return bytes?.subarray(0, GZIP_MAGIC.length).equals(GZIP_MAGIC) ? bytes : null;
}

/**
 * Returns the start of the error output of packing, where `tar` names the unreadable files. The end of the output only repeats that errors
 * occurred.
 */
function firstErrors(stderr: string): string {
  return stderr.trim().slice(0, REASON_CHARS);
}
