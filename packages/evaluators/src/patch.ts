import { randomBytes } from 'node:crypto';
import { type Clock, FloeError, MIB } from '@floe-rl/core';
import type { ExecResult, Runtime } from '@floe-rl/sandbox';
import { isRuntimeFailure, outputMissing, tailOf, withinTime } from './commands.ts';
import type { PatchConfig } from './patch-config.ts';

/** Largest patch in bytes: far larger than any legitimate patch, and small enough to hold in memory for every session in POSTRUN. */
const MAX_PATCH_BYTES = 16 * MIB;

/** The reason why the agent's changes could not be applied in the fresh runtime. Each of these problems leads to a reward of 0. */
type PatchProblem = 'patch_failed' | 'patch_timeout' | 'patch_too_large' | 'patch_does_not_apply' | 'apply_timeout';

/**
 * Whether the agent's changes were applied in the fresh runtime. `bytes` is the size of the patch, which is 0 when the agent changed no
 * file.
 */
type CarriedPatch =
  | { readonly applied: true; readonly bytes: number }
  | { readonly applied: false; readonly problem: PatchProblem; readonly details: Record<string, unknown> };

export type PatchOptions = {
  /** Name of the evaluator, for messages. */
  readonly evaluator: string;
  readonly config: PatchConfig;
  readonly env: Readonly<Record<string, string>>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * Shell script that prints the agent's changes to the repository as a patch against the base commit, including new files but not ignored
 * files. Each sandbox commits the prepared files itself. The commit time changes the hash of this commit but not the hash of its tree. When
 * the agent's repository therefore lacks the base commit, the patch is made against the base tree.
 *
 * The script uses a repository and an index of its own, and reads the objects of the agent's repository. So the agent's index stays unchanged.
 * From the agent's repository it copies only settings and lists that decide how files are compared. It copies no setting that can start a
 * program, such as a filter or `core.fsmonitor`. For the same reason it marks submodules with `skip-worktree`: `git add` would otherwise run
 * `git status` in them, with their settings. Without `sparse.expectFilesOutsideOfPatterns`, git would ignore this mark in a sparse checkout.
 *
 * The home directory is replaced by a path that has no files. Versions of git before 2.32 ignore `GIT_CONFIG_GLOBAL`, and every version reads
 * lists of ignored files and of attributes below the home directory.
 */
const DEFAULT_PATCH_COMMAND = `
set -e
home=$HOME
HOME=/dev/null
XDG_CONFIG_HOME=/dev/null
export HOME XDG_CONFIG_HOME
head=$(git rev-parse --verify HEAD)
top=$(git rev-parse --show-toplevel)
objects=$(git rev-parse --git-path objects)
objects=$(cd "$objects" && pwd -P)
own="$FLOE_PATCH.git"
trap 'rm -rf "$own"' EXIT
git init -q --bare --template= "$own"
git --git-dir="$own" config core.bare false
git --git-dir="$own" config sparse.expectFilesOutsideOfPatterns true
for name in core.repositoryFormatVersion extensions.objectFormat core.autocrlf core.eol core.fileMode core.symlinks \\
  core.excludesFile core.sparseCheckout core.sparseCheckoutCone; do
  if value=$(git config --get "$name"); then
    case $value in "~/"*) value=$home/\${value#??} ;; esac
    git --git-dir="$own" config "$name" "$value"
  fi
done
mkdir "$own/info"
for name in attributes exclude sparse-checkout; do
  list=$(git rev-parse --git-path "info/$name")
  if [ -f "$list" ]; then cat "$list" > "$own/info/$name"; fi
done
printf '%s\n' "$objects" > "$own/objects/info/alternates"
GIT_DIR=$own
GIT_WORK_TREE=$top
export GIT_DIR GIT_WORK_TREE
base=$head
for known in "$FLOE_BASE_COMMIT" "$FLOE_BASE_TREE"; do
  if git cat-file -e "$known" 2>/dev/null; then base=$known; break; fi
done
git read-tree "$base"
(cd "$top" && git ls-files --stage | sed -n 's/^160000 [0-9a-f]* 0.//p' | git update-index --skip-worktree --stdin)
git add -A .
git diff --cached --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv "$base"
`;

/**
 * Environment in which git reads no settings from the agent's home directory or root file system. Such settings may permit the use of a
 * repository that belongs to another user, so this environment permits it instead.
 */
const CLEAN_GIT_ENV = {
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_ATTR_NOSYSTEM: '1',
  GIT_CONFIG_COUNT: '1',
  GIT_CONFIG_KEY_0: 'safe.directory',
  GIT_CONFIG_VALUE_0: '*',
};

/**
 * Shell script that removes the excluded paths from the patch. Rename detection is off, so that every path is filtered by its own name.
 */
const FILTER_COMMAND = `
set -e
GIT_INDEX_FILE="$FLOE_PATCH.index"
export GIT_INDEX_FILE
trap 'rm -f "$GIT_INDEX_FILE"' EXIT
git read-tree HEAD
git apply --cached --whitespace=nowarn "$FLOE_PATCH"
git diff --cached --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv HEAD -- . "$@" > "$FLOE_PATCH.kept"
mv "$FLOE_PATCH.kept" "$FLOE_PATCH"
`;

/** Exit code of {@link SIZE_COMMAND} when the patch is larger than {@link MAX_PATCH_BYTES}. */
const TOO_LARGE = 65;

/**
 * Shell script that checks and prints the size of the patch. An agent may be able to change its output, so only its exit code shows whether
 * the patch is too large.
 */
const SIZE_COMMAND = `
bytes=$(wc -c < "$FLOE_PATCH") || exit 1
echo "$bytes"
if [ "$bytes" -gt ${MAX_PATCH_BYTES} ]; then exit ${TOO_LARGE}; fi
`;

/**
 * Copies the agent's changes from its runtime to the runtime `fresh`, as a patch that is applied there. Failures that the agent can cause
 * in its own runtime (a broken repository, a hanging or huge diff) are returned as a `problem`. Rejects with `evaluator_failed` when the
 * fresh runtime, to which the agent had no access, has no usable repository.
 */
export async function carryPatch(agent: Runtime, fresh: Runtime, options: PatchOptions): Promise<CarriedPatch> {
  const base = await readBase(fresh, options);
  const made = await makePatch(agent, base, options).catch((thrown) => agentFailure(thrown, fresh, options));
  if (!Buffer.isBuffer(made)) return made;
  if (made.length === 0) return { applied: true, bytes: 0 };
  return applyPatch(fresh, made, options);
}

type Base = { readonly commit: string; readonly tree: string };

async function readBase(fresh: Runtime, options: PatchOptions): Promise<Base> {
  const ran = await runInRepo(fresh, 'git rev-parse "HEAD^{commit}" "HEAD^{tree}"', {}, options).catch(asMissing);
  const ended = ran === 'missing' || ran.timedOut ? null : ran.value;
  if (ended?.exitCode === 0) {
    const [commit, tree] = ended.stdout.split('\n');
    if (commit && tree) return { commit, tree };
    throw outputMissing(options.evaluator, 'the commit of the repository');
  }
  throw new FloeError(
    'evaluator_failed',
    `${options.evaluator}: the fresh runtime has no git repository with a commit in ${repoOf(fresh, options)}`,
    ended === null ? { failure: ran === 'missing' ? 'repo_missing' : 'apply_timeout' } : tailOf(ended),
  );
}

async function makePatch(agent: Runtime, base: Base, options: PatchOptions): Promise<Buffer | CarriedPatch> {
  const path = newPatchPath(agent);
  const command = options.config.patch_command ?? DEFAULT_PATCH_COMMAND;
  const gitEnv = options.config.patch_command === null ? CLEAN_GIT_ENV : {};
  const env = { ...gitEnv, FLOE_PATCH: path, FLOE_BASE_COMMIT: base.commit, FLOE_BASE_TREE: base.tree };
  // The patch is written to a file, because the diff of a file in another encoding is not valid UTF-8 and stdout is read as text.
  const made = await runInRepo(agent, `(\n${command}\n) > "$FLOE_PATCH"`, env, options).catch(asMissing);
  if (made === 'missing') return notApplied('patch_failed', { missing: repoOf(agent, options) });
  if (made.timedOut) return notApplied('patch_timeout', {});
  if (made.value.exitCode !== 0) return notApplied('patch_failed', tailOf(made.value));
  const sized = await runInRepo(agent, SIZE_COMMAND, { FLOE_PATCH: path }, options);
  if (sized.timedOut) return notApplied('patch_timeout', {});
  if (sized.value.exitCode === TOO_LARGE) {
    return notApplied('patch_too_large', { bytes: numberIn(sized.value), limit_bytes: MAX_PATCH_BYTES });
  }
  if (sized.value.exitCode !== 0) return notApplied('patch_failed', { unreadable: true });
  const patch = await agent.readFile(path, MAX_PATCH_BYTES, options.signal);
  return patch ?? notApplied('patch_failed', { unreadable: true });
}

/**
 * Returns the problem for an error that was thrown while the patch was made in the agent's runtime. The agent may have broken anything in
 * that runtime, so the error is the agent's. It is rethrown when the spawn helper died or when the fresh runtime, to which the agent had no
 * access, cannot run a command either: then the host has failed.
 */
async function agentFailure(thrown: unknown, fresh: Runtime, options: PatchOptions): Promise<CarriedPatch> {
  if (!isRuntimeFailure(thrown)) throw thrown;
  await runInRepo(fresh, ':', {}, options);
  return notApplied('patch_failed', { error: thrown.message });
}

async function applyPatch(fresh: Runtime, patch: Buffer, options: PatchOptions): Promise<CarriedPatch> {
  const path = newPatchPath(fresh);
  await fresh.writeFiles([{ path, content: patch }], options.signal);
  const excludes = options.config.exclude_patterns.map((pattern) => `:(exclude)${pattern}`);
  if (excludes.length > 0) {
    const filtered = await runInRepo(
      fresh,
      ['/bin/sh', '-c', FILTER_COMMAND, 'sh', ...excludes],
      { FLOE_PATCH: path },
      options,
    );
    if (filtered.timedOut) return notApplied('apply_timeout', {});
    if (filtered.value.exitCode !== 0) return notApplied('patch_does_not_apply', tailOf(filtered.value));
  }
  const command =
    'if [ -s "$FLOE_PATCH" ]; then git apply --whitespace=nowarn "$FLOE_PATCH"; fi && wc -c < "$FLOE_PATCH"';
  const applied = await runInRepo(fresh, command, { FLOE_PATCH: path }, options);
  if (applied.timedOut) return notApplied('apply_timeout', {});
  if (applied.value.exitCode !== 0) return notApplied('patch_does_not_apply', tailOf(applied.value));
  const bytes = numberIn(applied.value);
  if (bytes === null) throw outputMissing(options.evaluator, 'the size of the applied patch');
  return { applied: true, bytes };
}

/** Runs a command in the repository of a runtime, with the time limit `apply_timeout`. */
export function runInRepo(
  runtime: Runtime,
  command: string | readonly string[],
  env: Record<string, string>,
  options: PatchOptions,
) {
  const request = { command, cwd: repoOf(runtime, options), env: { ...options.env, ...env } };
  return withinTime(options.clock, options.config.apply_timeout * 1000, options.signal, (signal) =>
    runtime.exec(request, signal),
  );
}

/**
 * Returns `missing` when the error means that a folder does not exist, and rethrows any other error. The caller decides whether the task (in
 * the fresh runtime) or the agent caused it.
 */
function asMissing(thrown: unknown): 'missing' {
  if (FloeError.is(thrown) && thrown.code === 'workdir_missing') return 'missing';
  throw thrown;
}

/** Returns the number that is the whole output of a command; `null` when the output is something else. */
function numberIn({ stdout }: ExecResult): number | null {
  return /^\s*\d{1,15}\s*$/.test(stdout) ? Number(stdout) : null;
}

function repoOf(runtime: Runtime, options: PatchOptions): string {
  return options.config.repo_dir ?? runtime.paths.workdir;
}

/** Returns a path for a patch file. It is random, so that the agent cannot have created a link at this path. */
export function newPatchPath(runtime: Runtime): string {
  return `${runtime.paths.home}/floe-${randomBytes(12).toString('hex')}.patch`;
}

function notApplied(problem: PatchProblem, details: Record<string, unknown>): CarriedPatch {
  return { applied: false, problem, details };
}
