/** Environment variable with the test files of a run: glob patterns as a JSON array. The configuration of vitest reads it. */
export const TESTS_VARIABLE = 'FLOE_STRYKER_TESTS';
/** Environment variable with the test files that the run leaves out: glob patterns as a JSON array. */
export const LEFT_OUT_VARIABLE = 'FLOE_STRYKER_LEFT_OUT';

/** Glob patterns of test files. A run executes the files that match `run` and do not match `leftOut`. */
export type TestFiles = { readonly run: readonly string[]; readonly leftOut: readonly string[] };

/** Test files that are left out of every run, each with the reason. */
const LEFT_OUT: readonly string[] = [
  // The test starts the compiled floe as a process, which does not contain the mutant.
  'packages/server/test/integration/rollout/restart.test.ts',
  // The test takes minutes, most of them waiting for time limits of the database.
  'packages/server/test/integration/store/postgres-faults.test.ts',
  // The test compares the text of the sources, which Stryker changes.
  'test/verify/control-plane/planted-defects.test.ts',
];

/**
 * Tests of several packages together, and tests that take ten seconds or more. They run the mutated code in their own process, as
 * the fast tests do.
 */
const SLOW: readonly string[] = [
  'test/golden/*.test.ts',
  'test/fidelity/*.test.ts',
  'test/verify/control-plane/*.test.ts',
  'test/integration/{engines,failures,sessions}.test.ts',
  'packages/floe/test/integration/commands/servers-on-one-database.test.ts',
  'packages/capture/test/proxy/http/{bad-input,floods}.test.ts',
  'packages/server/test/rollout/sessions/fencing.test.ts',
  'packages/server/test/rollout/tasks/group-races.test.ts',
];

/** The test folders of the fast tests. Each of them tests the folder with the same path below `src/` of its package. */
export const FAST_FOLDERS = [
  'packages/capture/test/engines',
  'packages/capture/test/proxy',
  'packages/capture/test/tokens',
  'packages/client/test',
  'packages/node/test/gateway',
  'packages/observe/test',
  'packages/server/test/rollout',
  'packages/server/test/store',
];

export const FAST_TESTS: TestFiles = {
  run: FAST_FOLDERS.map((folder) => `${folder}/**/*.test.ts`),
  leftOut: [...LEFT_OUT, ...SLOW],
};

export const SLOW_TESTS: TestFiles = { run: SLOW, leftOut: LEFT_OUT };

/** Returns the tests of the given folders and files. */
export function testsIn(paths: readonly string[]): TestFiles {
  return { run: paths.map((path) => (path.endsWith('.ts') ? path : `${path}/**/*.test.ts`)), leftOut: LEFT_OUT };
}
