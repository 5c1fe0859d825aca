import { posix } from 'node:path';
import { MIB } from '../core/bytes.ts';
import type { ExecResult, Runtime } from './runtime.ts';

/**
 * Maximum number of characters of the reason why artifacts are missing. It is limited because the agent controls its text, and it is
 * stored in a database row.
 */
const REASON_CHARS = 600;
/** Highest exit code of `tar` that means a warning: it has packed all that it could read, but some files were unreadable. */
const MAX_TAR_WARNING_CODE = 2;
/** The first two bytes of every gzip stream. */
const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);
/** Size of an empty gzip stream in bytes. The archive of a single empty file is more than three times as large. */
const EMPTY_GZIP_BYTES = 20;

/**
 * Shell script that packs the directories `artifacts` and `logs` and further paths of a folder into one compressed archive. Prints the
 * archive's path and the result of each step, as one `word value` per output line. It packs files, directories and links (as links) and
 * opens nothing else. Names in the archive come from a temporary folder of links to the sources, which works with every `tar`; these
 * links, whose names end in a slash, are not packed. Other file systems are not entered. Arguments: the folder, the most bytes to write,
 * paths below the folder.
 */
const PACK_SCRIPT = `base=\${1%/}; limit=$2; shift 2
cd "$base/" && stage=$(mktemp -d) || exit 1
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
  /** Paths to pack in addition to the artifacts and the logs. Relative paths are below the workdir. */
  readonly paths: readonly string[];
};

export type Collected = {
  /** The tar archive, compressed with gzip, with names below `artifacts/`, `logs/` and `paths/`; `null` when there is none. */
  readonly archive: Buffer | null;
  /** Which files the archive lacks and why, or why there is no archive; `null` when the archive is complete. */
  readonly omitted: string | null;
};

/**
 * Packs the artifacts, the logs and further paths of a sandbox into one archive; `null` when there are only empty folders. Rejects as
 * `exec` and `readFile` do. The agent controls the size of the file tree, so only the abort of `signal` bounds the time. The sandbox needs
 * `tar`, `gzip`, `find`, `head`, `mktemp`, `ln` and `wc`, and disk space for the archive.
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
  const report = parseReport(ended.stdout);
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
 * Returns the path of `given` relative to the folder `base`, an empty string for the folder itself; `null` when it is not below the
 * folder.
 */
function pathBelow(base: string, workdir: string, given: string): string | null {
  const path = posix.relative(base, posix.resolve(workdir, given));
  return path === '..' || path.startsWith('../') ? null : path;
}

type Report = ReadonlyMap<string, readonly string[]>;

/** Reads the output of {@link PACK_SCRIPT}: returns the values that it printed for each word. */
function parseReport(stdout: string): Report {
  const report = new Map<string, string[]>();
  for (const line of stdout.split('\n')) {
    const [word = '', ...rest] = line.split(' ');
    report.set(word, [...(report.get(word) ?? []), rest.join(' ').trim()]);
  }
  return report;
}

/**
 * Returns the first value after the keyword `word` in the script's report as a number; NaN when the script ended before it printed that
 * keyword.
 */
function numberOf(report: Report, word: string): number {
  return Number.parseInt(report.get(word)?.[0] ?? '', 10);
}

/** Returns the reason why there is no archive; `null` when there is one to read. */
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

/** Returns the start of the error output, which names the affected files. The end of tar's output states only that there were errors. */
function firstErrors(stderr: string): string {
  return stderr.trim().slice(0, REASON_CHARS);
}
