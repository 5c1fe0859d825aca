import { FloeError } from '@floe-rl/core';
import type { Runtime } from '@floe-rl/sandbox';
import { tailOf } from '../commands.ts';
import { newPatchPath, type PatchOptions, runInRepo } from '../patch.ts';
import type { SweBenchRow } from './config.ts';

/**
 * Shell script that applies the test patch to the base commit in a separate index. It lists the files that the patch adds, and the files that
 * it changes or deletes.
 */
const CHECK_COMMAND = `
set -e
if ! [ -x /bin/bash ]; then echo "/bin/bash is missing" >&2; exit 127; fi
GIT_INDEX_FILE="$FLOE_PATCH.index"
export GIT_INDEX_FILE
trap 'rm -f "$GIT_INDEX_FILE"' EXIT
git read-tree "$FLOE_BASE"
git apply --cached --whitespace=nowarn "$FLOE_PATCH"
git diff --cached --name-only -z --no-renames --diff-filter=A "$FLOE_BASE" > "$FLOE_PATCH.added"
git diff --cached --name-only -z --no-renames --diff-filter=a "$FLOE_BASE" > "$FLOE_PATCH.changed"
`;

/** Shell script that restores the files of the test patch to their content in the base commit, whatever the agent changed in them. */
const RESTORE_COMMAND = `
set -e
cd "$(git rev-parse --show-toplevel)"
GIT_LITERAL_PATHSPECS=1
export GIT_LITERAL_PATHSPECS
if [ -s "$FLOE_PATCH.changed" ]; then xargs -0 git checkout -q "$FLOE_BASE" -- < "$FLOE_PATCH.changed"; fi
if [ -s "$FLOE_PATCH.added" ]; then xargs -0 rm -rf -- < "$FLOE_PATCH.added"; fi
`;

const APPLY_COMMAND = `${RESTORE_COMMAND}
git apply --whitespace=nowarn "$FLOE_PATCH"
`;

/** A test patch in a fresh runtime. */
export type StoredTestPatch = { readonly env: Readonly<Record<string, string>> };

/**
 * Writes the test patch of a row to a fresh runtime before any other patch is applied there. Rejects with `evaluator_failed` when the patch
 * does not apply to the base commit, or when bash is missing, because the runtime then does not fit the row.
 */
export async function storeTestPatch(
  fresh: Runtime,
  { baseCommit, testPatch }: SweBenchRow,
  options: PatchOptions,
): Promise<StoredTestPatch> {
  const path = newPatchPath(fresh);
  const env = { FLOE_PATCH: path, FLOE_BASE: baseCommit };
  const content = Buffer.from(testPatch.endsWith('\n') ? testPatch : `${testPatch}\n`);
  await fresh.writeFiles([{ path, content }], options.signal);
  const checked = await runInRepo(fresh, CHECK_COMMAND, env, options).catch((thrown) => {
    if (FloeError.is(thrown) && thrown.code === 'workdir_missing') return null;
    throw thrown;
  });
  if (checked !== null && !checked.timedOut && checked.value.exitCode === 0) return { env };
  throw new FloeError(
    'evaluator_failed',
    `${options.evaluator}: the tests of the row do not fit the fresh runtime, where the base commit is ${baseCommit}`,
    checked === null || checked.timedOut
      ? { failure: checked === null ? 'repo_missing' : 'apply_timeout' }
      : tailOf(checked.value),
  );
}

/** The reason why the tests could not be put in place after the agent's patch. The agent's patch is then the cause. */
export type TestPatchProblem = {
  readonly failure: 'test_patch_conflict' | 'apply_timeout';
  readonly details: Record<string, unknown>;
};

/**
 * Restores the files of the test patch after the agent's patch was applied and, with `applies`, applies the test patch. Resolves with `null`
 * when that worked.
 */
export async function placeTests(
  fresh: Runtime,
  { env }: StoredTestPatch,
  applies: boolean,
  options: PatchOptions,
): Promise<TestPatchProblem | null> {
  const placed = await runInRepo(fresh, applies ? APPLY_COMMAND : RESTORE_COMMAND, { ...env }, options);
  if (placed.timedOut) return { failure: 'apply_timeout', details: {} };
  return placed.value.exitCode === 0 ? null : { failure: 'test_patch_conflict', details: tailOf(placed.value) };
}
