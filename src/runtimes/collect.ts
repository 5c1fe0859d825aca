import { posix } from 'node:path';
import type { ExecResult, Runtime } from './runtime.ts';

const MIB = 1024 * 1024;
/** What the sandbox says of a failure is the agent's to write, and goes into a row. */
const REASON_CHARS = 600;
/** `tar` ends with 1 or 2 when it could not read all that it was to pack, and has packed the rest. */
const TAR_WARNS = 2;
/** The first bytes of every gzip stream. */
const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);
/** Of nothing at all, compressed. An archive of one empty file has more than three times as many. */
const EMPTY_GZIP_BYTES = 20;

/**
 * Packs `artifacts`, `logs` and further paths of a folder into one compressed archive, and prints where it is and how that
 * went, a word and a value a line. Files, folders and links as links are packed; nothing else is opened. The names in the
 * archive come from a folder of links to what is packed, so that every `tar` can give them; the links themselves, whose
 * names end in a slash, are left out of it. Another file system is not entered. Arguments: the folder, the most bytes to write, paths below the folder.
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
  /** Of the compressed archive. */
  readonly maxBytes: number;
  /** Beside the artifacts and the logs; relative ones are below the workdir. */
  readonly paths: readonly string[];
};

export type Collected = {
  /** A tar archive, compressed with gzip, of names below `artifacts/`, `logs/` and `paths/`. */
  readonly archive: Buffer | null;
  /** What the archive lacks and why, or why there is none. */
  readonly omitted: string | null;
};

/**
 * The artifacts, the logs and further paths of a sandbox as one archive; null when there is nothing but empty folders.
 * Rejects as `exec` and `readFile` do. The tree is the agent's: it is the signal that bounds the time. The sandbox needs
 * `tar`, `gzip`, `find`, `head`, `mktemp`, `ln` and `wc`, and room for the archive.
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
  const said = reportOf(ended.stdout);
  const notes = paths.flatMap(({ given, path }) => (path === null ? [`${given} is not in the sandbox`] : []));
  for (const index of said.get('missing') ?? []) notes.push(`${inside[Number(index)]?.given} is not there`);
  let archive: Buffer | null = null;
  if (!said.has('empty')) {
    const problem = whyNotPacked(ended, said, request.maxBytes);
    archive = problem === null ? await readArchive(runtime, said, request.maxBytes, signal) : null;
    if (problem !== null) notes.push(problem);
    else if (archive === null) notes.push('what the sandbox packed is not an archive');
    else if (statusOf(said, 'tar') !== 0) notes.push(withoutEnd(ended.stderr));
  }
  if (archive === null && notes.length === 0) return null;
  return { archive, omitted: notes.length === 0 ? null : notes.join('; ').slice(0, REASON_CHARS) };
}

/** The path relative to the folder, empty for the folder itself; null when it is not below. */
function pathBelow(base: string, workdir: string, given: string): string | null {
  const path = posix.relative(base, posix.resolve(workdir, given));
  return path === '..' || path.startsWith('../') ? null : path;
}

type Report = ReadonlyMap<string, readonly string[]>;

function reportOf(stdout: string): Report {
  const report = new Map<string, string[]>();
  for (const line of stdout.split('\n')) {
    const [word = '', ...rest] = line.split(' ');
    report.set(word, [...(report.get(word) ?? []), rest.join(' ').trim()]);
  }
  return report;
}

/** NaN when the script did not come that far. */
function statusOf(report: Report, word: string): number {
  return Number.parseInt(report.get(word)?.[0] ?? '', 10);
}

/** null when there is an archive to read. */
function whyNotPacked(ended: ExecResult, report: Report, maxBytes: number): string | null {
  const bytes = statusOf(report, 'bytes');
  const tar = statusOf(report, 'tar');
  const because = `: ${withoutEnd(ended.stderr)}`;
  if (ended.killedBy !== null) return `packing exceeded the limit on ${ended.killedBy}`;
  if (Number.isNaN(bytes)) return `packing ended with exit code ${ended.exitCode}${because}`;
  if (bytes > maxBytes) return `the archive is larger than the ${maxBytes / MIB} MiB of artifacts.max_mb`;
  if (statusOf(report, 'head') !== 0) return `the archive could not be written${because}`;
  if (statusOf(report, 'gzip') !== 0) return `gzip ended with exit code ${statusOf(report, 'gzip')}${because}`;
  if (!(tar <= TAR_WARNS) || (tar !== 0 && bytes <= EMPTY_GZIP_BYTES))
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

/** The first messages tell which files it is about; the last only that there were some. */
function withoutEnd(stderr: string): string {
  return stderr.trim().slice(0, REASON_CHARS);
}
