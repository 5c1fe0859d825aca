import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { makeImage } from '../../../../../verify/fixtures/image.ts';
import type { PrivateEngine } from '../../../../../verify/services/container-engine.ts';
import { dockerMissing, startDockerDaemon } from '../../../../../verify/services/docker-daemon.ts';
import { folderWith, HARBOR_FILES, TERMINAL_BENCH_FILES } from '../../../../data/test/harbor/task-folder.ts';
import { CLI, type Exit, run } from '../../commands/machine.ts';

const floe = (...words: string[]): Promise<Exit> => run([process.execPath, CLI, 'harbor', ...words]);

describe('floe harbor', () => {
  it.each<[string, readonly string[], string]>([
    [
      'a folder without a task',
      ['check', 'EMPTY', '--image', 'x', '--docker-socket', '/nowhere'],
      'contains no task folder',
    ],
    [
      'a harness without an engine',
      ['run', 'TASK', '--backend', 'bubblewrap', '--image', '/x'],
      'a harness needs an engine',
    ],
    ['two reference agents', ['run', 'TASK', '--oracle', '--noop'], '--oracle and --noop exclude each other'],
    [
      'a runtime without images',
      ['check', 'TASK', '--backend', 'local'],
      '--backend local: a Harbor task needs a sandbox with an image',
    ],
    [
      'a variable that is not set',
      ['check', 'TASK', '--backend', 'bubblewrap', '--image', '/x', '--pass-env', 'ABSENT'],
      'the variable ABSENT is not set',
    ],
    [
      'a daemon that does not respond',
      ['check', 'TASK', '--docker-socket', '/nowhere'],
      'the container engine at /nowhere does not respond',
    ],
    ['a number that is none', ['run', 'TASK', '-n', 'many'], '--samples: many is not an integer'],
  ])('refuses %s', async (_case, words, message) => {
    const task = folderWith(HARBOR_FILES);
    const folders: Record<string, string> = { TASK: task, EMPTY: folderWith({}) };
    const { code, output } = await floe(...words.map((word) => folders[word] ?? word));
    expect(output).toContain(message);
    expect(code).not.toBe(0);
  });

  it('refuses two tasks with the same name', async () => {
    const files = Object.entries(HARBOR_FILES);
    const twice = ['a', 'b'].flatMap((name) => files.map(([path, content]) => [`${name}/${path}`, content]));
    const { code, output } = await floe('check', folderWith(Object.fromEntries(twice)), '--docker-socket', '/nowhere');
    expect(output).toContain('have the same name floe/greeting');
    expect(code).toBe(1);
  });
});

describeIf(await dockerMissing(), 'floe harbor in Docker', () => {
  let docker: PrivateEngine;
  beforeAll(async () => {
    docker = await startDockerDaemon();
    const dir = mkdtempSync(join(tmpdir(), 'floe-image-'));
    makeImage(dir, ['bash', 'chmod', 'find', 'grep']);
    await docker.importImage('base', dir);
    rmSync(dir, { recursive: true, force: true });
  }, 120_000);
  afterAll(() => docker?.stop());

  const inDocker = (command: string, folder: string, ...more: string[]): Promise<Exit> =>
    floe(command, folder, '--docker-socket', docker.socketPath, '--build-network', 'none', ...more);
  const resultsOf = ({ output }: Exit): unknown => JSON.parse(output.slice(output.indexOf('{"results"'))).results;

  it('gives the reference solution 1 and no action 0, in the working directory of the image', async () => {
    const dockerfile = 'FROM base\nWORKDIR /srv/app\nRUN echo built > built.txt\n';
    const test = 'cat built.txt && grep -qx hello /srv/app/greeting.txt';
    const files = {
      ...HARBOR_FILES,
      'environment/Dockerfile': dockerfile,
      'tests/test.sh': `{ ${test}; } && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n`,
    };
    const folder = folderWith(files);
    const first = await inDocker('check', folder);
    expect(first.output).toContain('building the image');
    expect(first.output).toMatch(/oracle +1 .*as expected\n.*noop +0 .*as expected/);
    expect(first.code).toBe(0);
    const second = await inDocker('check', folder, '--json');
    expect(second.output).not.toContain('building the image');
    expect(resultsOf(second)).toMatchObject([
      { agent: 'oracle', reward: 1 },
      { agent: 'noop', reward: 0 },
    ]);
  }, 120_000);

  it('exits with 1 and the output of the verifier when a reward is not the expected one', async () => {
    const files = { ...HARBOR_FILES, 'tests/test.sh': 'echo broken\n' };
    const { code, output } = await inDocker('check', folderWith(files));
    expect(output).toContain('floe/greeting (oracle): no_reward: broken');
    expect(code).toBe(1);
  }, 120_000);

  it('quotes the end of the output of a Dockerfile that fails', async () => {
    const files = { ...HARBOR_FILES, 'environment/Dockerfile': 'FROM base\nRUN echo almost && exit 7\n' };
    const { code, output } = await inDocker('check', folderWith(files));
    expect(output).toContain('setup_failed: the image floe-harbor-floe-greeting:');
    expect(output).toContain('almost');
    expect(output).toContain('returned a non-zero code: 7');
    expect(code).toBe(1);
  }, 120_000);

  it('runs a Terminal-Bench task and a separate verifier', async () => {
    const summary =
      'echo "=== short test summary info ==="; grep -q hello out.txt && echo "PASSED a::b" || echo "FAILED a::b"';
    const terminalBench = {
      ...TERMINAL_BENCH_FILES,
      Dockerfile: 'FROM base\nWORKDIR /srv\n',
      'run-tests.sh': summary,
      'solution.sh': 'echo hello > out.txt',
    };
    const separate = {
      ...HARBOR_FILES,
      'task.toml': 'artifacts = ["greeting.txt"]\n[verifier]\nenvironment_mode = "separate"\n',
      'solution/solve.sh': 'echo hello > greeting.txt; echo forged > /usr/bin/grep\n',
    };
    const named = (name: string, files: Record<string, string>) =>
      Object.fromEntries(Object.entries(files).map(([path, content]) => [`${name}/${path}`, content]));
    const folder = folderWith({ ...named('a', terminalBench), ...named('b', separate) });
    const { code, output } = await inDocker('check', folder);
    expect(output.match(/as expected/g)).toHaveLength(4);
    expect(code).toBe(0);
  }, 120_000);

  it('runs the steps of a task in one sandbox, each with its reference solution and its tests', async () => {
    const test = (condition: string): string =>
      `if ${condition}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n`;
    const toml = '[[steps]]\nname = "one"\nmin_reward = 1\n[[steps]]\nname = "two"\n';
    const folder = folderWith({
      ...HARBOR_FILES,
      'task.toml': `[task]\nname = "floe/steps"\n${toml}`,
      'steps/one/instruction.md': 'Write one.',
      'steps/one/tests/test.sh': test('[ "$(cat count)" = 1 ]'),
      'steps/one/tests/secret': '',
      'steps/one/solution/solve.sh': 'echo 1 > count',
      'steps/two/instruction.md': 'Write two.',
      'steps/two/tests/test.sh': test('[ "$(cat count)" = 2 ]'),
      // The tests of the first step and its reward must not be there.
      'steps/two/solution/solve.sh': '[ ! -e /tests/secret ] && [ "$(cat count)" = 1 ] && echo 2 > count',
    });
    const { output, code } = await inDocker('check', folder);
    expect(output).toMatch(/oracle +1 .*as expected\n.*noop +0 .*as expected/);
    expect(code).toBe(0);
  }, 120_000);

  it('builds images for bubblewrap, which has no engine, and keeps them in the image store', async () => {
    const test = 'grep -qx stored built.txt && grep -qx hello greeting.txt';
    const files = {
      ...HARBOR_FILES,
      'environment/Dockerfile': 'FROM base\nWORKDIR /srv/app\nRUN echo stored > built.txt\n',
      'tests/test.sh': `if ${test}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n`,
    };
    const folder = folderWith(files);
    const store = folderWith({});
    const check = (...more: string[]) =>
      run(
        [
          process.execPath,
          CLI,
          'harbor',
          'check',
          folder,
          '--backend',
          'bubblewrap',
          '--build-network',
          'none',
          ...more,
        ],
        {
          FLOE_IMAGE_DIR: store,
        },
      );
    const first = await check('--docker-socket', docker.socketPath);
    expect(first.output).toContain('building the image');
    expect(first.output).toMatch(/oracle +1 .*as expected\n.*noop +0 /);
    const second = await check('--docker-socket', '/nowhere');
    expect(second.output).not.toContain('building the image');
    expect(second.output).toMatch(/oracle +1 .*as expected/);
  }, 120_000);

  it('runs a task with a harness and the simulated engine, and writes its traces', async () => {
    const out = folderWith({});
    const agent = ['--harness', 'shell', '--custom-shell', 'echo hello > greeting.txt', '--sim', '--out', out];
    const { code, output } = await inDocker('run', folderWith(HARBOR_FILES), ...agent);
    // This agent calls no model, so its session has no reward.
    expect(output).toMatch(/floe\/greeting +1 +(no_completions|agent_error)/);
    expect(code).toBe(1);
  }, 120_000);
});
