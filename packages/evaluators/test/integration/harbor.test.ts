import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type FloeError, systemClock, VirtualClock } from '@floe-rl/core';
import { evaluatorSpecSchema } from '@floe-rl/core/schema';
import { allowedSource, type Runtime } from '@floe-rl/sandbox';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../test/skip.ts';
import { makeImage } from '../../../../verify/fixtures/image.ts';
import { bubblewrapMissing, never, Workbench } from '../../../sandbox/test/backends/workbench.ts';
import type { Evaluation } from '../../src/evaluator.ts';
import { evaluatorRegistry } from '../../src/registry.ts';
import { directoryRuntime } from '../directory-runtime.ts';
import { sessionOf } from '../evaluated-session.ts';

const NEEDS_ROOT = process.getuid?.() === 0 ? null : 'images owned by root need a gateway that is root';
const missing = NEEDS_ROOT ?? (await bubblewrapMissing());
const PASS = 'echo 1 > /logs/verifier/reward.txt';

describeIf(missing, 'the evaluator harbor', () => {
  let bench: Workbench;
  let dir: string;
  const open: Runtime[] = [];
  beforeAll(async () => {
    bench = await Workbench.open();
    dir = mkdtempSync(join(tmpdir(), 'floe-harbor-'));
    makeImage(join(dir, 'image'), ['bash', 'find', 'grep', 'chmod', 'sleep']);
  });
  afterEach(async () => {
    for (const runtime of open.splice(0)) await runtime.stop();
    rmSync(join(dir, 'tests'), { recursive: true, force: true });
  });
  afterAll(async () => {
    await bench?.close();
    rmSync(dir, { recursive: true, force: true });
  });

  /** Starts a sandbox and runs a script in it. */
  async function sandbox(script = 'true'): Promise<Runtime> {
    const runtime = await bench.start('bubblewrap', { image: join(dir, 'image'), workdir: '/testbed' });
    open.push(runtime);
    const ran = await runtime.exec({ command: script }, never);
    if (ran.exitCode !== 0) throw new Error(ran.stderr);
    return runtime;
  }

  type Setup = {
    readonly files?: Readonly<Record<string, string>>;
    /** Script that the agent ran. */
    readonly work?: string;
    readonly fresh?: Runtime | null;
    readonly config?: Record<string, unknown>;
    readonly env?: Record<string, string>;
    readonly clock?: VirtualClock;
    readonly runtime?: Runtime;
  };

  /** Grades with the test script `test`. */
  async function grade(test: string, setup: Setup = {}): Promise<Evaluation> {
    const { files = {}, work, fresh = null, config = {}, env = {}, clock = systemClock } = setup;
    mkdirSync(join(dir, 'tests'), { recursive: true });
    for (const [name, content] of Object.entries({ 'test.sh': test, ...files }))
      writeFileSync(join(dir, 'tests', name), content);
    const runtime = setup.runtime ?? (await sandbox(work));
    const hostSource = (path: string): Promise<string> => allowedSource(path, [dir]);
    const spec = {
      strategy: 'harbor',
      config: { tests: [join(dir, 'tests')], ...config },
      env,
      refresh_runtime: fresh !== null,
    };
    const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime: fresh, session: sessionOf() };
    return evaluatorRegistry(clock, { hostSource }).get('harbor').evaluate(context, never);
  }

  it('runs the script in the workdir of the agent with the tests and the variables of the task', async () => {
    const test =
      'grep -qx "$WANTED" out.txt && grep -q data /tests/data.txt && echo 0.5 > /logs/verifier/reward.txt; echo ran';
    const graded = await grade(test, {
      work: 'echo hello > out.txt',
      files: { 'data.txt': 'data' },
      env: { WANTED: 'hello' },
    });
    expect(graded).toMatchObject({ reward: 0.5, details: { exit_code: 0, stdout_tail: 'ran\n' } });
  });

  it('works as root in the runtime of the agent and in a fresh one', async () => {
    const ofUser = ({ backend, isolation, paths }: Runtime, root: Runtime): Runtime =>
      ({ backend, isolation, paths, asRoot: () => root }) as Runtime;
    const [agent, second] = [await sandbox('echo hello > out.txt'), await sandbox()];
    expect(await grade(PASS, { runtime: ofUser(agent, agent) })).toMatchObject({ reward: 1 });
    const carried = {
      runtime: ofUser(agent, agent),
      fresh: ofUser(second, second),
      config: { artifacts: ['out.txt'] },
    };
    expect(await grade(`grep -q hello out.txt && ${PASS}`, carried)).toMatchObject({ reward: 1 });
  });

  it('reads components from reward.json, before reward.txt', async () => {
    const graded = await grade(`echo '{"reward": 0.75, "style": 0}' > /logs/verifier/reward.json; ${PASS}`);
    expect(graded).toMatchObject({ reward: 0.75, components: { reward: 0.75, style: 0 } });
  });

  it('uses the reward of a script that fails after it wrote the reward', async () => {
    expect(await grade(`${PASS}; exit 3`)).toMatchObject({ reward: 1, details: { exit_code: 3 } });
  });

  it('removes rewards and tests that the agent wrote', async () => {
    const work =
      'mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json; echo x > /tests/conftest.py';
    const graded = await grade('[ ! -e /tests/conftest.py ] || echo conftest', { work });
    expect(graded).toMatchObject({ reward: 0, details: { failure: 'no_reward', stdout_tail: '' } });
  });

  it('runs in the home directory of the user, and refuses a user that the image lacks', async () => {
    const test = `[ "$HOME" = /home/agent ] && ${PASS}`;
    const env = { HOME: '/' };
    expect(await grade(test, { env, config: { user: 'agent' } })).toMatchObject({ reward: 1 });
    expect(await grade(test, { env })).toMatchObject({ reward: 1 });
    const unknown = await grade(PASS, { config: { user: 'ghost' } });
    const details = { exit_code: 125, stderr_tail: 'the image has no user ghost\n' };
    expect(unknown).toMatchObject({ reward: 0, details });
  });

  it('rejects with evaluator_failed for another user than root where the runtime has only root', async () => {
    const real = await sandbox();
    const runtime = new Proxy(real, { get: (of, key) => (key === 'backend' ? 'apptainer' : Reflect.get(of, key, of)) });
    const graded = grade(PASS, { runtime, config: { user: 'nobody' } });
    const message = 'harbor: config.user: is nobody, and a sandbox of apptainer has only the user root';
    await expect(graded).rejects.toMatchObject({ code: 'evaluator_failed', message });
  });

  it('reads the summary of pytest from the output', async () => {
    const test = 'echo "=== short test summary info ==="; echo "PASSED t.py::a"; echo "FAILED t.py::b"';
    const graded = await grade(test, { config: { grading: 'pytest_summary' } });
    expect(graded).toMatchObject({ reward: 0, components: { tests_passed: 0.5 } });
  });

  it('runs a command in place of the script, with executable tests in other directories', async () => {
    const work = 'mkdir -p /checks/in /out; echo 1 > /out/reward.txt; touch /checks/planted';
    const test = '#!/bin/bash\n[ ! -e /checks/planted ] && [ ! -e /out/reward.txt ] && echo 0.5 > /out/reward.txt';
    const paths = { tests_target: '/checks', verifier_dir: '/out' };
    expect(
      await grade(test, { work, config: { ...paths, test_command: '/checks/test.sh "a" && echo "$0 ran"' } }),
    ).toMatchObject({ reward: 0.5, details: { exit_code: 0, stdout_tail: 'bash ran\n' } });
    expect(await grade(test, { work, config: paths })).toMatchObject({ reward: 0.5 });
  });

  it('gives 0 for a script that fails after it wrote the reward, where it grades as Polar does', async () => {
    const config = { grading: 'polar' };
    expect(await grade(`${PASS}; exit 3`, { config })).toMatchObject({
      reward: 0,
      details: { failure: 'exit_code', exit_code: 3 },
    });
    expect(await grade(PASS, { config })).toMatchObject({ reward: 1 });
    expect(await grade('true', { config })).toMatchObject({ reward: 0, details: { failure: 'no_reward' } });
  });

  it('copies single files and several folders in their order', async () => {
    mkdirSync(join(dir, 'tests/more'), { recursive: true });
    writeFileSync(join(dir, 'tests/more/test.sh'), PASS);
    writeFileSync(join(dir, 'run.sh'), '. /tests/test.sh');
    const tests = [join(dir, 'tests'), join(dir, 'tests/more'), join(dir, 'run.sh')];
    expect(await grade('exit 1', { config: { tests, script: 'run.sh' } })).toMatchObject({ reward: 1 });
  });

  it.each([
    ['no_reward', 'true'],
    ['invalid_reward', 'echo passed > /logs/verifier/reward.txt'],
    ['invalid_reward', 'head -c 70000 /dev/zero > /logs/verifier/reward.json'],
    ['no_reward', 'mkdir /logs/verifier/reward.txt'],
  ])('gives 0 in the runtime of the agent and fails in a fresh one: %s', async (failure, test) => {
    expect(await grade(test)).toMatchObject({ reward: 0, details: { failure } });
    const config = { artifacts: ['out.txt'] };
    const failed = grade(test, { fresh: await sandbox(), config });
    await expect(failed).rejects.toMatchObject({ code: 'evaluator_failed', details: { failure } });
    const declared = { ...config, agent_failures: [failure] };
    expect(await grade(test, { fresh: await sandbox(), config: declared })).toMatchObject({
      reward: 0,
      details: { failure },
    });
  });

  it('ends a script that does not end', async () => {
    const clock = new VirtualClock();
    const graded = grade('echo started > /tests/started; sleep 1000', { clock, config: { timeout: 600 } });
    const started = async () => (await open[0]?.readFile('/tests/started', 10, never)) ?? null;
    await expect.poll(started, { timeout: 20_000 }).not.toBeNull();
    clock.advance(600_000);
    expect(await graded).toMatchObject({ reward: 0, details: { failure: 'timeout', timeout: 600 } });
  }, 30_000);

  it('gives 0 when the agent replaced the programs that the tests need', async () => {
    expect(await grade(PASS, { work: 'rm /usr/bin/bash' })).toMatchObject({
      reward: 0,
      details: { failure: 'no_reward' },
    });
    expect(await grade(PASS, { work: 'rm /usr/bin/mkdir' })).toMatchObject({
      reward: 0,
      details: { failure: 'tests_blocked' },
    });
    expect(await grade(PASS, { work: 'rm /usr/bin/sh' })).toMatchObject({ reward: 0 });
  });

  describe('in a fresh runtime', () => {
    it('gets only the declared files of the agent, by absolute and relative path', async () => {
      const work = 'mkdir -p /srv/report; echo 1 > /srv/report/one; echo 2 > out.txt; echo 3 > left.txt; echo 4 > /top';
      const test = `[ -e /srv/report/one ] && [ -e out.txt ] && [ -e /top ] && [ ! -e left.txt ] && ${PASS}`;
      const config = { artifacts: ['/srv/report', 'out.txt', '/top', '/absent'] };
      const graded = await grade(test, { work, fresh: await sandbox(), config });
      expect(graded).toMatchObject({ reward: 1, details: { carried_files: 3, missing_paths: ['absent'] } });
    });

    it('gets what the commands of the task collect', async () => {
      const config = { artifacts: ['dump.txt'], collect: [{ command: 'cat state.txt > dump.txt' }] };
      const graded = await grade(`grep -q kept dump.txt && ${PASS}`, {
        work: 'echo kept > state.txt',
        fresh: await sandbox(),
        config,
      });
      expect(graded.reward).toBe(1);
    });

    it('gives 0 when a file of the agent is in the way of the tests', async () => {
      const config = { artifacts: ['/logs/verifier', '/tests'] };
      const work = 'mkdir -p /logs; echo x > /logs/verifier; rm -rf /tests; echo x > /tests';
      const graded = await grade(PASS, { work, fresh: await sandbox(), config });
      expect(graded).toMatchObject({ reward: 0, details: { failure: 'tests_blocked' } });
    });
  });

  it('fails without blaming the agent when the tests cannot be read from the host', async () => {
    const config = { tests: [join(dir, 'absent')] };
    await expect(grade(PASS, { config })).rejects.toMatchObject({ code: 'prepare_failed' });
    await expect(grade(PASS, { config: { tests: ['/etc'] } })).rejects.toMatchObject({ code: 'source_forbidden' });
  });

  it('refuses a runtime without isolation, in which it would change directories of the host', async () => {
    const runtime = await directoryRuntime();
    open.push(runtime);
    await expect(grade(PASS, { runtime })).rejects.toMatchObject({ code: 'evaluator_failed' });
    expect(runtime.commands).toEqual([]);
  });
});

describe('the configuration of the evaluator harbor', () => {
  const evaluators = evaluatorRegistry();
  const check =
    (config: Record<string, unknown>, refresh_runtime: boolean | null = null) =>
    () =>
      evaluators.check(
        evaluatorSpecSchema.parse({ strategy: 'harbor', config: { tests: ['/t'], ...config }, refresh_runtime }),
      );

  it('uses a fresh runtime when it declares what crosses', () => {
    const evaluator = evaluators.get('harbor');
    expect(evaluator.wantsFreshRuntime?.({ artifacts: ['out'] })).toBe(true);
    expect(evaluator.wantsFreshRuntime?.({})).toBe(false);
    expect(check({ artifacts: ['out'] })).not.toThrow();
    expect(check({})).not.toThrow();
  });

  it.each<[string, Record<string, unknown>, boolean | null]>([
    ['evaluator.config.tests', { tests: [] }, null],
    ['evaluator.config.script', { script: '../x' }, null],
    ['evaluator.config.timeout', { timeout: 0 }, null],
    ['evaluator.config.user', { user: 'a b' }, null],
    ['evaluator.config.script', { script: 'run.sh', test_command: 'true' }, null],
    ['evaluator.config.test_command', { test_command: '-l' }, null],
    ['evaluator.config.tests_target', { tests_target: 'tests' }, null],
    ['evaluator.config.verifier_dir', { verifier_dir: '/' }, null],
    ['evaluator.config.artifacts.0', { artifacts: ['a/../b'] }, null],
    ['evaluator.config.artifacts.0', { artifacts: ['/'] }, null],
    ['evaluator.config.artifacts', {}, true],
    ['evaluator.config.artifacts', { artifacts: ['a'] }, false],
    ['evaluator.config.collect', { collect: [{ command: 'x' }] }, null],
    ['evaluator.config.agent_failures', { agent_failures: ['timeout'] }, null],
    ['evaluator.config', { test: 1 }, null],
  ])('is refused with the path of an invalid field: %s', (path, config, refresh) => {
    const thrown = (() => {
      try {
        check(config, refresh)();
      } catch (error) {
        return error as FloeError;
      }
      return null;
    })();
    expect(thrown?.code).toBe('schema_violation');
    expect(thrown?.details.issues).toMatchObject([{ path }]);
  });
});
