import { FloeError, VirtualClock } from '@floe-rl/core';
import type { Runtime } from '@floe-rl/sandbox';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { bubblewrapMissing, Workbench } from '../../../../sandbox/test/backends/workbench.ts';
import type { Evaluation } from '../../../src/evaluator.ts';
import { evaluatorRegistry } from '../../../src/registry.ts';
import { directoryRuntime, losing, shell } from '../../directory-runtime.ts';
import { sessionOf } from '../../evaluated-session.ts';

const GIT =
  'GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z git -c user.name=t -c user.email=t@t -c commit.gpgsign=false';

/** Prints the status of each test script like `pytest -rA`: 0 is passed, 3 is skipped. */
const RUNNER = `
status=0
for test in "$@"; do
  sh "$test"
  case $? in
    0) echo "PASSED $test::run" ;;
    3) echo "SKIPPED $test::run" ;;
    *) echo "FAILED $test::run - wrong"; status=1 ;;
  esac
done
exit $status
`;

/** Creates a repository in which `sum.sh` has a defect that its test does not detect yet. */
const PREPARE = `
git init -q .
mkdir tests
printf 'echo 5\\n' > sum.sh
cat > run.sh <<'RUNNER'
${RUNNER}
RUNNER
printf 'test -n "$(sh sum.sh)"\\n' > tests/sum.sh
printf 'if [ -f skip ]; then exit 3; fi\\n' > tests/ready.sh
printf 'old\\n' > tests/old.sh
git add -A
${GIT} commit -q -m start
`;

/** Changes the test of `sum.sh`, adds another test and deletes a third. */
const TEST_PATCH = `
printf 'if [ -f skip ]; then exit 3; fi\\ntest "$(sh sum.sh)" = 4\\n' > tests/sum.sh
printf 'test "$(sh sum.sh)" -lt 5\\n' > tests/new.sh
rm tests/old.sh
git add -A
git diff --cached
`;

const FIX = "printf 'echo 4\\n' > sum.sh\n";
const TESTS = 'sh run.sh tests/sum.sh tests/new.sh tests/ready.sh';

type Setup = {
  readonly work?: string;
  readonly config?: Record<string, unknown>;
  readonly row?: Record<string, unknown>;
  readonly fresh?: Runtime;
  readonly clock?: VirtualClock;
};

type Fixture = {
  grade(setup: Setup): Promise<Evaluation>;
  prepared(script?: string): Promise<Runtime>;
};

/** Makes the runtimes of a test with `start`, and grades the work of an agent in them. */
function fixture(start: () => Promise<Runtime>): Fixture {
  const open: Runtime[] = [];
  afterEach(async () => {
    for (const runtime of open.splice(0)) await runtime.stop();
  });
  const prepared = async (script = PREPARE): Promise<Runtime> => {
    const runtime = await start();
    open.push(runtime);
    await shell(runtime, script);
    return runtime;
  };
  const grade = async ({ work = '', config, row, fresh, clock }: Setup): Promise<Evaluation> => {
    const [runtime, freshRuntime, scratch] = [await prepared(), fresh ?? (await prepared()), await prepared()];
    const base_commit = (await shell(scratch, 'git rev-parse HEAD')).trim();
    const test_patch = await shell(scratch, TEST_PATCH);
    if (work !== '') await shell(runtime, work);
    const instance = {
      instance_id: 'own__sum-1',
      repo: 'own/sum',
      version: '1',
      base_commit,
      test_patch,
      FAIL_TO_PASS: ['tests/sum.sh::run', 'tests/new.sh::run'],
      PASS_TO_PASS: '["tests/ready.sh::run"]',
      log_parser: 'parse_log_pytest',
      ...row,
    };
    const spec = {
      strategy: 'swebench',
      config: { instance, repo_dir: null, test_command: TESTS, ...config },
      env: {},
      refresh_runtime: true,
    };
    const evaluator = evaluatorRegistry(clock).get('swebench');
    const context = { spec, status: 'COMPLETED', runtime, freshRuntime, session: sessionOf() } as const;
    return evaluator.evaluate(context, new AbortController().signal);
  };
  return { grade, prepared };
}

/** Tests that every kind of runtime must pass. */
function gradesPatches({ grade }: Fixture): void {
  it('gives a patch that makes the tests pass a reward of 1', async () => {
    const { reward, details } = await grade({ work: FIX });
    expect(reward).toBe(1);
    expect(details).toMatchObject({
      resolved: true,
      fail_to_pass: { held: 2, not_held: 0 },
      pass_to_pass: { held: 1, not_held: 0 },
    });
  });

  it('gives a patch after which a test fails a reward of 0, or the share of the tests that hold', async () => {
    const work = "printf 'echo 3\\n' > sum.sh";
    const { reward, details } = await grade({ work });
    expect(reward).toBe(0);
    expect(details.fail_to_pass).toEqual({ held: 1, not_held: 1, examples: ['tests/sum.sh::run'] });
    expect((await grade({ work, config: { reward_granularity: 'pass_rate' } })).reward).toBeCloseTo(2 / 3);
  });

  it('gives a patch that edits, adds or deletes the test files a reward of 0', async () => {
    const work = 'echo true > tests/sum.sh; echo true > tests/new.sh; rm tests/ready.sh; echo x > own.txt';
    const { reward, details } = await grade({ work });
    expect(reward).toBe(0);
    expect(details.fail_to_pass).toMatchObject({ held: 0, not_held: 2 });
  });
}

const bench: { open: Workbench | null } = { open: null };

describeIf(await bubblewrapMissing(), 'swebench in a bubblewrap sandbox', () => {
  beforeAll(async () => {
    bench.open = await Workbench.open();
  });
  afterAll(() => bench.open?.close());
  gradesPatches(
    fixture(() => {
      if (bench.open === null) throw new Error('the workbench is not open');
      return bench.open.start('bubblewrap');
    }),
  );
});

describe('swebench', () => {
  const ours = fixture(directoryRuntime);
  const { grade, prepared } = ours;
  gradesPatches(ours);

  it.each([
    ['edits the test files beside the fix', 'echo true > tests/sum.sh; echo false > tests/new.sh'],
    ['commits them', `echo true > tests/sum.sh; git add -A; ${GIT} commit -q -m x`],
    ['replaces a new test file by a folder', 'mkdir tests/new.sh; echo x > tests/new.sh/x'],
    ['replaces a test file by a link', 'ln -sf ../sum.sh tests/sum.sh'],
  ])('gives the reward of the fix when the agent %s', async (_, cheat) => {
    expect(await grade({ work: `${FIX}${cheat}` })).toMatchObject({ reward: 1 });
    expect(await grade({ work: cheat })).toMatchObject({ reward: 0, details: { resolved: false } });
  });

  it('gives an empty patch a reward of 0 without running the tests', async () => {
    expect(await grade({})).toEqual({ reward: 0, details: { failure: 'empty_patch', patch_bytes: 0 } });
    const config = { exclude_patterns: ['notes/*'] };
    expect(await grade({ work: 'mkdir notes; echo x > notes/a', config })).toMatchObject({
      details: { failure: 'empty_patch' },
    });
  });

  it('counts a skipped test as held only where it passed before', async () => {
    const { reward, details } = await grade({ work: `${FIX}touch skip` });
    expect(reward).toBe(0);
    expect(details.fail_to_pass).toMatchObject({ held: 1, examples: ['tests/sum.sh::run'] });
    expect(details.pass_to_pass).toMatchObject({ held: 1 });
  });

  it.each([
    ['exit_status_unexplained', 'echo "PASSED tests/sum.sh::run"; false'],
    ['tests_not_run', 'echo nothing'],
    ['markers_missing', 'exit 1'],
    ['failure_marker', 'echo ">>>>> Tests Errored"'],
  ])('gives a reward of 0 with the failure %s', async (failure, test_command) => {
    expect(await grade({ work: FIX, config: { test_command } })).toMatchObject({ reward: 0, details: { failure } });
  });

  it('reads both output streams in their order', async () => {
    const test_command = `${TESTS} 1>&2; echo "FAILED tests/sum.sh::run"; ${TESTS} 1>&2`;
    expect((await grade({ work: FIX, config: { test_command } })).reward).toBe(1);
  });

  it('gives a patch that does not apply a reward of 0', async () => {
    const patch_command = `printf 'diff --git a/sum.sh b/sum.sh\\n--- a/sum.sh\\n+++ b/sum.sh\\n@@ -1 +1 @@\\n-other\\n+x\\n'`;
    expect(await grade({ config: { patch_command } })).toMatchObject({
      reward: 0,
      details: { failure: 'patch_does_not_apply' },
    });
  });

  it('gives a reward of 0 when the test patch no longer applies after the patch of the agent', async () => {
    const row = {
      test_patch: 'diff --git a/new/x b/new/x\nnew file mode 100644\n--- /dev/null\n+++ b/new/x\n@@ -0,0 +1 @@\n+x\n',
    };
    expect(await grade({ work: `${FIX}echo x > new`, row })).toMatchObject({
      reward: 0,
      details: { failure: 'test_patch_conflict' },
    });
  });

  it.each([
    [
      'the test patch does not apply to the base commit',
      { test_patch: 'diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-x\n+y\n' },
    ],
    ['the base commit is missing', { base_commit: '0'.repeat(40) }],
  ])('fails without a reward when %s', async (_, row) => {
    await expect(grade({ work: FIX, row })).rejects.toMatchObject({ code: 'evaluator_failed' });
  });

  it('fails without a reward when the fresh runtime has no repository', async () => {
    await expect(grade({ work: FIX, fresh: await prepared('true') })).rejects.toMatchObject({
      code: 'evaluator_failed',
    });
    await expect(grade({ work: FIX, config: { repo_dir: '/nowhere' } })).rejects.toMatchObject({
      code: 'evaluator_failed',
    });
  });

  it('fails without a reward when the host breaks', async () => {
    const fresh = await prepared();
    const exec: Runtime['exec'] = (request, signal) =>
      request.command[0] === '/bin/bash'
        ? Promise.reject(new FloeError('runtime_failed', 'no more processes'))
        : fresh.exec(request, signal);
    await expect(grade({ work: FIX, fresh: { ...fresh, exec } })).rejects.toMatchObject({ code: 'runtime_failed' });
  });

  it('fails so that the session is retried when the output of the test script is lost', async () => {
    const fresh = losing(await prepared(), '/bin/bash');
    await expect(grade({ work: FIX, fresh })).rejects.toMatchObject({
      code: 'runtime_failed',
      details: { output: 'lost' },
    });
  });

  it('gives a reward of 0 when the tests run until the end of their time limit', async () => {
    const clock = new VirtualClock();
    const fresh = await prepared();
    const exec: Runtime['exec'] = (request, signal) => {
      const running = fresh.exec(request, signal);
      if (request.command[0] === '/bin/bash') clock.advance(5_000);
      return running;
    };
    const config = { test_command: 'tail -f /dev/null', test_timeout: 5 };
    expect(await grade({ work: FIX, clock, fresh: { ...fresh, exec }, config })).toMatchObject({
      reward: 0,
      details: { failure: 'test_timeout', test_timeout: 5 },
    });
  });

  it("runs a row's own script, which restores the test files and applies the test patch itself", async () => {
    const test_patch = await shell(await prepared(), TEST_PATCH);
    const eval_script = [
      '#!/bin/bash',
      'set -uxo pipefail',
      'git checkout HEAD tests/sum.sh tests/old.sh',
      `git apply -v - <<'EOF_1'\n${test_patch}\nEOF_1`,
      ": '>>>>> Start Test Output'",
      TESTS,
      ": '>>>>> End Test Output'",
      'git checkout HEAD tests/sum.sh tests/old.sh',
    ].join('\n');
    const graded = (work: string) => grade({ work, row: { eval_script }, config: { test_command: null } });
    const cheat = 'echo true > tests/sum.sh; echo true > tests/new.sh';
    expect(await graded(`${FIX}${cheat}`)).toMatchObject({ reward: 1 });
    expect(await graded(cheat)).toMatchObject({ reward: 0 });
    expect(await graded("printf 'echo 3\\n' > sum.sh")).toMatchObject({ reward: 0, details: { resolved: false } });
  });

  it("grades a row of R2E-Gym by the summary of the repository's own test script", async () => {
    const row = { expected_output_json: '{"run": "PASSED"}', test_patch: '', base_commit: '' };
    const script = `${PREPARE}\nprintf '%s\\n' 'echo "= short test summary info ="' 'sh run.sh tests/sum.sh' > run_tests.sh
      echo run_tests.sh > .git/info/exclude`;
    const config = { test_command: null };
    expect(await grade({ work: FIX, row, config, fresh: await prepared(script) })).toMatchObject({
      reward: 1,
      details: { resolved: true, matching_tests: 1 },
    });
    const other = { ...row, expected_output_json: '{"run": "PASSED", "b": "PASSED"}' };
    const share = { ...config, reward_granularity: 'pass_rate' };
    expect((await grade({ work: FIX, row: other, config, fresh: await prepared(script) })).reward).toBe(0);
    expect((await grade({ work: FIX, row: other, config: share, fresh: await prepared(script) })).reward).toBe(0.5);
  });
});
