import { randomBytes } from 'node:crypto';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { ExecResult, Runtime } from '../runtimes/runtime.ts';
import { withinTime } from './deadline.ts';
import type { TestConfig } from './test-config.ts';

/** Far above any honest piece of work, and little enough to hold for every session in POSTRUN. */
const MAX_PATCH_BYTES = 16 * 1024 * 1024;
/** Of a command's output, kept in details to explain what happened. */
const TAIL_CHARS = 2000;

/** Why the agent's work could not be brought over; each is a reward of 0. */
export type PatchProblem =
  | 'patch_failed'
  | 'patch_timeout'
  | 'patch_too_large'
  | 'patch_does_not_apply'
  | 'apply_timeout';

export type CarriedPatch =
  | { readonly applied: true; readonly bytes: number }
  | { readonly applied: false; readonly problem: PatchProblem; readonly details: Record<string, unknown> };

export type PatchCarrier = {
  readonly config: TestConfig;
  readonly env: Readonly<Record<string, string>>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * The agent's work in a repository as a patch: everything since `$FLOE_BASE`, with new files, ignored ones left out.
 * A tree is asked for after the commit, because preparing two runtimes makes equal trees in commits of different
 * times. Made with an index of its own, so the agent's is left as it is.
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

/** Drops excluded paths: git reads the patch itself, and without renames every path stands for itself. */
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
 * Carries the agent's work from its runtime to `fresh` and applies it there. What the agent can bring about in its own
 * runtime (a broken repository, a hanging or huge diff) is its own failure and comes back as a problem. Rejects with
 * `evaluator_failed` when the fresh runtime, which the agent never touched, has no usable repository.
 */
export async function carryPatch(agent: Runtime, fresh: Runtime, carrier: PatchCarrier): Promise<CarriedPatch> {
  const base = await readBase(fresh, carrier);
  const made = await makePatch(agent, base, carrier);
  if (!Buffer.isBuffer(made)) return made;
  if (made.length === 0) return { applied: true, bytes: 0 };
  return applyPatch(fresh, made, carrier);
}

type Base = { readonly commit: string; readonly tree: string };

async function readBase(fresh: Runtime, carrier: PatchCarrier): Promise<Base> {
  const found = await run(fresh, 'git rev-parse "HEAD^{commit}" "HEAD^{tree}"', {}, carrier).catch(asMissing);
  const ended = found === 'missing' || found.timedOut ? null : found.value;
  const [commit, tree] = ended?.exitCode === 0 ? ended.stdout.split('\n') : [];
  if (commit && tree) return { commit, tree };
  throw new FloeError(
    'evaluator_failed',
    `test_on_output: the fresh runtime has no git repository with a commit in ${repoOf(fresh, carrier)}`,
    ended === null ? { failure: found === 'missing' ? 'repo_missing' : 'apply_timeout' } : tailOf(ended),
  );
}

async function makePatch(agent: Runtime, base: Base, carrier: PatchCarrier): Promise<Buffer | CarriedPatch> {
  const path = newPatchPath(agent);
  const command = carrier.config.patch_command ?? DEFAULT_PATCH_COMMAND;
  const env = { FLOE_PATCH: path, FLOE_BASE_COMMIT: base.commit, FLOE_BASE_TREE: base.tree };
  // To a file, because a diff of a text file in another encoding is not valid UTF-8.
  const made = await run(agent, `(\n${command}\n) > "$FLOE_PATCH"`, env, carrier).catch(asMissing);
  if (made === 'missing') return notApplied('patch_failed', { missing: repoOf(agent, carrier) });
  if (made.timedOut) return notApplied('patch_timeout', {});
  if (made.value.exitCode !== 0) return notApplied('patch_failed', tailOf(made.value));
  const sized = await run(agent, 'wc -c < "$FLOE_PATCH"', { FLOE_PATCH: path }, carrier);
  const bytes = sized.timedOut ? Number.NaN : Number(sized.value.stdout.trim() || Number.NaN);
  if (!Number.isSafeInteger(bytes)) return notApplied('patch_failed', { unreadable: true });
  if (bytes > MAX_PATCH_BYTES) return notApplied('patch_too_large', { bytes, limit_bytes: MAX_PATCH_BYTES });
  const patch = await agent.readFile(path, MAX_PATCH_BYTES, carrier.signal);
  return patch ?? notApplied('patch_failed', { unreadable: true });
}

async function applyPatch(fresh: Runtime, patch: Buffer, carrier: PatchCarrier): Promise<CarriedPatch> {
  const path = newPatchPath(fresh);
  await fresh.writeFiles([{ path, content: patch }], carrier.signal);
  const excludes = carrier.config.exclude_patterns.map((pattern) => `:(exclude)${pattern}`);
  if (excludes.length > 0) {
    const filtered = await run(
      fresh,
      ['/bin/sh', '-c', FILTER_COMMAND, 'sh', ...excludes],
      { FLOE_PATCH: path },
      carrier,
    );
    if (filtered.timedOut) return notApplied('apply_timeout', {});
    if (filtered.value.exitCode !== 0) return notApplied('patch_does_not_apply', tailOf(filtered.value));
  }
  const command =
    'if [ -s "$FLOE_PATCH" ]; then git apply --whitespace=nowarn "$FLOE_PATCH"; fi && wc -c < "$FLOE_PATCH"';
  const applied = await run(fresh, command, { FLOE_PATCH: path }, carrier);
  if (applied.timedOut) return notApplied('apply_timeout', {});
  if (applied.value.exitCode !== 0) return notApplied('patch_does_not_apply', tailOf(applied.value));
  return { applied: true, bytes: Number(applied.value.stdout.trim()) };
}

function run(
  runtime: Runtime,
  command: string | readonly string[],
  env: Record<string, string>,
  carrier: PatchCarrier,
) {
  const request = { command, cwd: repoOf(runtime, carrier), env: { ...carrier.env, ...env } };
  return withinTime(carrier.clock, carrier.config.apply_timeout * 1000, carrier.signal, (signal) =>
    runtime.exec(request, signal),
  );
}

/** A missing repository is the task's mistake in the fresh runtime, and the agent's doing in its own. */
function asMissing(thrown: unknown): 'missing' {
  if (FloeError.is(thrown) && thrown.code === 'workdir_missing') return 'missing';
  throw thrown;
}

function repoOf(runtime: Runtime, carrier: PatchCarrier): string {
  return carrier.config.repo_dir ?? runtime.paths.workdir;
}

/** A name that the agent cannot have prepared a link under. */
function newPatchPath(runtime: Runtime): string {
  return `${runtime.paths.home}/floe-${randomBytes(12).toString('hex')}.patch`;
}

function notApplied(problem: PatchProblem, details: Record<string, unknown>): CarriedPatch {
  return { applied: false, problem, details };
}

/** The ends of what a command printed, for details. */
export function tailOf(result: ExecResult): Record<string, unknown> {
  return {
    exit_code: result.exitCode,
    signal: result.signal,
    killed_by: result.killedBy,
    stdout_tail: result.stdout.slice(-TAIL_CHARS),
    stderr_tail: result.stderr.slice(-TAIL_CHARS),
  };
}
