import { randomBytes } from 'node:crypto';
import { MIB } from '../core/bytes.ts';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import { tailOf, withinTime } from './commands.ts';
import type { TestConfig } from './test-config.ts';

/** Largest patch in bytes: far larger than any legitimate patch, and small enough to hold in memory for every session in POSTRUN. */
const MAX_PATCH_BYTES = 16 * MIB;

/** Why the agent's changes could not be applied in the fresh runtime. Each of these is a reward of 0. */
type PatchProblem = 'patch_failed' | 'patch_timeout' | 'patch_too_large' | 'patch_does_not_apply' | 'apply_timeout';

/**
 * Whether the agent's changes were applied in the fresh runtime. `bytes` is the size of the patch, which is 0 when the agent changed no
 * file.
 */
type CarriedPatch =
  | { readonly applied: true; readonly bytes: number }
  | { readonly applied: false; readonly problem: PatchProblem; readonly details: Record<string, unknown> };

type PatchOptions = {
  readonly config: TestConfig;
  readonly env: Readonly<Record<string, string>>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * Shell script that prints the agent's changes to the repository as a patch against the base commit, including new files but not ignored
 * ones. When the agent's repository lacks the base commit, the patch is made against the base tree: each sandbox commits the prepared files
 * itself, and the commit time changes the commit's hash but not that of its tree. A separate index file keeps the agent's own index unchanged.
 */
const DEFAULT_PATCH_COMMAND = `
set -e
base=HEAD
for known in "$FLOE_BASE_COMMIT" "$FLOE_BASE_TREE"; do
  if git cat-file -e "$known" 2>/dev/null; then base=$known; break; fi
done
GIT_INDEX_FILE="$FLOE_PATCH.index"
export GIT_INDEX_FILE
trap 'rm -f "$GIT_INDEX_FILE"' EXIT
git read-tree "$base"
git add -A .
git diff --cached --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv "$base"
`;

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

/**
 * Copies the agent's changes from its runtime to the runtime `fresh`, as a patch that is applied there. Failures that the agent can cause
 * in its own runtime (a broken repository, a hanging or huge diff) are returned as a `problem`. Rejects with `evaluator_failed` when the
 * fresh runtime, to which the agent had no access, has no usable repository.
 */
export async function carryPatch(agent: Runtime, fresh: Runtime, options: PatchOptions): Promise<CarriedPatch> {
  const base = await readBase(fresh, options);
  const made = await makePatch(agent, base, options);
  if (!Buffer.isBuffer(made)) return made;
  if (made.length === 0) return { applied: true, bytes: 0 };
  return applyPatch(fresh, made, options);
}

type Base = { readonly commit: string; readonly tree: string };

async function readBase(fresh: Runtime, options: PatchOptions): Promise<Base> {
  const ran = await run(fresh, 'git rev-parse "HEAD^{commit}" "HEAD^{tree}"', {}, options).catch(asMissing);
  const ended = ran === 'missing' || ran.timedOut ? null : ran.value;
  const [commit, tree] = ended?.exitCode === 0 ? ended.stdout.split('\n') : [];
  if (commit && tree) return { commit, tree };
  throw new FloeError(
    'evaluator_failed',
    `test_on_output: the fresh runtime has no git repository with a commit in ${repoOf(fresh, options)}`,
    ended === null ? { failure: ran === 'missing' ? 'repo_missing' : 'apply_timeout' } : tailOf(ended),
  );
}

async function makePatch(agent: Runtime, base: Base, options: PatchOptions): Promise<Buffer | CarriedPatch> {
  const path = newPatchPath(agent);
  const command = options.config.patch_command ?? DEFAULT_PATCH_COMMAND;
  const env = { FLOE_PATCH: path, FLOE_BASE_COMMIT: base.commit, FLOE_BASE_TREE: base.tree };
  // The patch is written to a file, because the diff of a file in another encoding is not valid UTF-8 and stdout is read as text.
  const made = await run(agent, `(\n${command}\n) > "$FLOE_PATCH"`, env, options).catch(asMissing);
  if (made === 'missing') return notApplied('patch_failed', { missing: repoOf(agent, options) });
  if (made.timedOut) return notApplied('patch_timeout', {});
  if (made.value.exitCode !== 0) return notApplied('patch_failed', tailOf(made.value));
  const sized = await run(agent, 'wc -c < "$FLOE_PATCH"', { FLOE_PATCH: path }, options);
  const bytes = sized.timedOut ? Number.NaN : Number(sized.value.stdout.trim() || Number.NaN);
  if (!Number.isSafeInteger(bytes)) return notApplied('patch_failed', { unreadable: true });
  if (bytes > MAX_PATCH_BYTES) return notApplied('patch_too_large', { bytes, limit_bytes: MAX_PATCH_BYTES });
  const patch = await agent.readFile(path, MAX_PATCH_BYTES, options.signal);
  return patch ?? notApplied('patch_failed', { unreadable: true });
}

async function applyPatch(fresh: Runtime, patch: Buffer, options: PatchOptions): Promise<CarriedPatch> {
  const path = newPatchPath(fresh);
  await fresh.writeFiles([{ path, content: patch }], options.signal);
  const excludes = options.config.exclude_patterns.map((pattern) => `:(exclude)${pattern}`);
  if (excludes.length > 0) {
    const filtered = await run(
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
  const applied = await run(fresh, command, { FLOE_PATCH: path }, options);
  if (applied.timedOut) return notApplied('apply_timeout', {});
  if (applied.value.exitCode !== 0) return notApplied('patch_does_not_apply', tailOf(applied.value));
  return { applied: true, bytes: Number(applied.value.stdout.trim()) };
}

function run(
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
 * Returns `missing` for the error of a missing folder and rethrows any other. The caller decides whether the task (in the fresh runtime)
 * or the agent caused it.
 */
function asMissing(thrown: unknown): 'missing' {
  if (FloeError.is(thrown) && thrown.code === 'workdir_missing') return 'missing';
  throw thrown;
}

function repoOf(runtime: Runtime, options: PatchOptions): string {
  return options.config.repo_dir ?? runtime.paths.workdir;
}

/** Returns a random path for the patch, so that the agent cannot have created a link there. */
function newPatchPath(runtime: Runtime): string {
  return `${runtime.paths.home}/floe-${randomBytes(12).toString('hex')}.patch`;
}

function notApplied(problem: PatchProblem, details: Record<string, unknown>): CarriedPatch {
  return { applied: false, problem, details };
}
