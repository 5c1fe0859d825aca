import { randomBytes } from 'node:crypto';
import { posix } from 'node:path';
import { type Clock, FloeError, MIB, messageOf } from '@floe-rl/core';
import type { Runtime, SandboxFile } from '@floe-rl/sandbox';
import { z } from 'zod';
import { isRuntimeFailure, requireWorking, tailOf, withinTime } from './commands.ts';

/** Maximum total size of the carried files with their names, in bytes. A patch has the same limit. */
const MAX_BYTES = 16 * MIB;
const MAX_FILES = 2_000;
/** Maximum length in bytes of a file's path, and of each part of the path. These are the limits of Linux. */
const MAX_PATH_BYTES = 4_096;
const MAX_NAME_BYTES = 255;

/** A path in a sandbox that is relative to a folder and does not lead out of it. */
export const relativePathSchema = z
  .string()
  .min(1)
  .refine((path) => !path.includes('\0'), 'must not contain a NUL byte')
  .refine((path) => !posix.isAbsolute(path), 'must be relative')
  .refine((path) => !path.split('/').includes('..'), 'must not contain ..')
  .refine(isShort, 'must not be longer than paths of Linux');

/** The reason why the agent's files could not be copied. Each of these problems leads to a reward of 0. */
type CarryProblem = 'carry_failed' | 'carry_timeout' | 'carry_too_large';

export type CarriedPaths =
  | { readonly applied: true; readonly files: number; readonly bytes: number; readonly missing: readonly string[] }
  | { readonly applied: false; readonly problem: CarryProblem; readonly details: Record<string, unknown> };

type CarryOptions = {
  /** Files and folders to carry, relative to `dir`. */
  readonly paths: readonly string[];
  /** Folder of the paths in both sandboxes; `null` for the workdir. */
  readonly dir: string | null;
  /** Time limit of each command in seconds. */
  readonly limitSeconds: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * Shell script that writes regular files to the file at its first argument, one after the other. Each file has its size, `x` or `-`, its path
 * and a NUL byte, and then its content. The second argument is the maximum number of bytes to write, and the others are the paths. The script
 * follows no symbolic link: links and paths below a link are left out.
 */
const READ_SCRIPT = `out=$1; limit=$2; shift 2
root=$(pwd -P)
[ "$root" != / ] || root=
for path in "$@"; do
  shift
  dir=$root/\${path%/*}
  [ "$dir" != "$root/$path" ] || dir=\${root:-/}
  if [ "$(cd -P -- "$dir" 2>/dev/null && pwd -P)" = "$dir" ]; then set -- "$@" "./$path"; fi
done
: >"$out"
[ $# -gt 0 ] || exit 0
find "$@" -type f -exec /bin/sh -c 'for file; do
  mode=-; [ ! -x "$file" ] || mode=x
  size=$(wc -c <"$file") || continue
  printf "%s %s %s\\000" "$((size))" "$mode" "$file"; cat "$file"
done' sh {} + 2>/dev/null | head -c "$limit" >"$out"`;

/**
 * Copies files from the agent's runtime to the runtime `fresh`. Only regular files below the given paths are copied, and they keep their
 * paths. A failure that the agent can cause is returned as a problem. Examples are files that are too large or too many, a broken shell, and a
 * file in the place of a folder.
 *
 * The agent had no access to the fresh runtime. Rejects when that runtime cannot run a command either, and with `evaluator_failed` when it
 * lacks a program that {@link READ_SCRIPT} needs.
 */
export async function carryPaths(agent: Runtime, fresh: Runtime, options: CarryOptions): Promise<CarriedPaths> {
  await requireTools(fresh, options.signal);
  const read = await readFiles(agent, options).catch((thrown) => agentFailure(thrown, fresh, options));
  if (!Array.isArray(read)) return read;
  const base = folderOf(fresh, options.dir);
  const files = read.map((file): SandboxFile => ({ ...file, path: posix.join(base, file.path) }));
  try {
    await fresh.writeFiles(files, options.signal);
  } catch (thrown) {
    return agentFailure(thrown, fresh, options);
  }
  const isFound = (path: string): boolean => read.some((file) => isBelow(file.path, posix.normalize(path)));
  const bytes = read.reduce((sum, { content }) => sum + content.length, 0);
  return { applied: true, files: read.length, bytes, missing: options.paths.filter((path) => !isFound(path)) };
}

async function requireTools(fresh: Runtime, signal: AbortSignal): Promise<void> {
  const command = `missing=0
for tool in find head wc cat; do command -v "$tool" >/dev/null || { echo "$tool"; missing=1; }; done
exit $missing`;
  const { exitCode, stdout } = await fresh.exec({ command, cwd: '/' }, signal);
  if (exitCode === 0) return;
  const missing = stdout.trim().split('\n').join(', ');
  throw new FloeError('evaluator_failed', `carry: paths needs programs that the fresh runtime lacks: ${missing}`);
}

/** Returns the absolute path of a folder that a task names in a sandbox. */
export function folderOf(runtime: Runtime, dir: string | null): string {
  return posix.resolve(runtime.paths.workdir, dir ?? '.');
}

async function readFiles(agent: Runtime, options: CarryOptions): Promise<SandboxFile[] | CarriedPaths> {
  const { paths, clock, signal, limitSeconds } = options;
  const out = `${agent.paths.home}/floe-${randomBytes(12).toString('hex')}.files`;
  const normal = paths.map((path) => posix.normalize(path).replace(/\/$/, ''));
  const command = ['/bin/sh', '-c', READ_SCRIPT, 'floe-carry', out, String(MAX_BYTES + 1), ...normal];
  const ran = await withinTime(clock, limitSeconds * 1000, signal, async (limited) => {
    const ended = await agent.exec({ command, cwd: folderOf(agent, options.dir), env: { LC_ALL: 'C' } }, limited);
    return { ended, data: await agent.readFile(out, MAX_BYTES + 1, limited) };
  });
  if (ran.timedOut) return refused('carry_timeout', {});
  const { ended, data } = ran.value;
  if (ended.exitCode !== 0 || data === null) return refused('carry_failed', tailOf(ended));
  if (data.length > MAX_BYTES) return refused('carry_too_large', { limit_bytes: MAX_BYTES });
  const files = filesIn(data, normal);
  if (files === null) return refused('carry_failed', { unreadable: true });
  return files.length > MAX_FILES ? refused('carry_too_large', { limit_files: MAX_FILES }) : files;
}

/**
 * Reads the output of {@link READ_SCRIPT}. Returns `null` for output that the script cannot have written, since an agent can replace the
 * programs in its runtime.
 */
function filesIn(data: Buffer, declared: readonly string[]): SandboxFile[] | null {
  const files = new Map<string, SandboxFile>();
  for (let at = 0; at < data.length; ) {
    const end = data.indexOf(0, at);
    const [, digits, mode, name] =
      /^(\d{1,9}) ([x-]) ([\s\S]+)$/.exec(data.toString('utf8', at, Math.max(end, at))) ?? [];
    if (digits === undefined || name === undefined) return null;
    const path = posix.normalize(name);
    const from = end + 1;
    at = from + Number(digits);
    if (at > data.length || !relativePathSchema.safeParse(path).success) return null;
    if (!declared.some((one) => isBelow(path, one))) return null;
    files.set(path, { path, content: data.subarray(from, at), mode: mode === 'x' ? 0o755 : 0o644 });
  }
  return [...files.values()];
}

/** Whether `path` is `folder` or in it. Both paths are normalized and relative to the same folder. */
function isBelow(path: string, folder: string): boolean {
  const top = folder.replace(/\/$/, '');
  return top === '.' || path === top || path.startsWith(`${top}/`);
}

function isShort(path: string): boolean {
  const parts = path.split('/');
  return Buffer.byteLength(path) < MAX_PATH_BYTES && parts.every((part) => Buffer.byteLength(part) <= MAX_NAME_BYTES);
}

/**
 * Returns the problem for an error that files of the agent may have caused. Rethrows the error when the spawn helper died, when the evaluation
 * was stopped, or when the fresh runtime cannot run a command. In these cases the agent did not cause it.
 */
async function agentFailure(thrown: unknown, fresh: Runtime, { signal }: CarryOptions): Promise<CarriedPaths> {
  signal.throwIfAborted();
  const isMissing = FloeError.is(thrown) && thrown.code === 'workdir_missing';
  if (FloeError.is(thrown) && !isMissing && !isRuntimeFailure(thrown)) throw thrown;
  await requireWorking(fresh, signal);
  return refused('carry_failed', { error: messageOf(thrown) });
}

function refused(problem: CarryProblem, details: Record<string, unknown>): CarriedPaths {
  return { applied: false, problem, details };
}
