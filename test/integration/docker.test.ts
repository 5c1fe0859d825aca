import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { checkAgainstLedger } from '@floe-rl/sim';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { harnessDir } from '#floe/commands/home';
import { IMAGE, startEngineWithImage } from '../../packages/sandbox/test/backends/container-bench.ts';
import type { PrivateEngine } from '../../verify/services/container-engine.ts';
import { dockerMissing } from '../../verify/services/docker-daemon.ts';
import { describeIf, itIf } from '../skip.ts';
import { scenarioOf } from './real-harness.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const missing = await dockerMissing();

const { installed } = await harnessStatus('pi', harnessDir());
const piMissing = installed ? null : 'pi is not installed: floe harness install pi';

/** Programs that the agents, git and the tests need in the image. */
const PROGRAMS = ['bash', 'find', 'git', 'grep', 'gzip', 'node', 'sed', 'sort', 'stat'];

/** A task in a git repository, whose tests run in a fresh container. */
const TASK: Omit<TaskRequestInput, 'agent'> = {
  instruction: 'Change the colour in config.txt to blue.',
  timeout_seconds: 240,
  max_attempts: 1,
  runtime: {
    image: IMAGE,
    prepare: [
      { type: 'write_file', target: 'config.txt', content: 'colour = red\n' },
      { type: 'exec', command: 'git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm base' },
    ],
  },
  evaluator: {
    strategy: 'test_on_output',
    config: {
      test_command: 'if grep -q "colour = blue" config.txt; then echo PASSED colour; else echo FAILED colour; fi',
      expected_output_json: { colour: 'PASSED' },
    },
  },
};

describeIf(missing, 'a session in Docker containers', () => {
  let docker: PrivateEngine;
  let stack: TestStack;
  beforeAll(async () => {
    docker = await startEngineWithImage('docker', PROGRAMS);
    const call = { tool: 'bash', arguments: { command: 'sed -i s/red/blue/ config.txt' } };
    stack = await startTestStack({
      scenarios: scenarioOf([call, 'Done.']),
      node: { default_backend: 'docker', docker_socket: docker.socketPath, harness_dir: harnessDir() },
    });
  }, 120_000);
  afterAll(async () => {
    await stack?.close();
    await docker?.stop();
  });

  const expectTrained = (result: SessionResult | undefined): void => {
    expect(result?.error?.message ?? result?.outcome).toBe('completed');
    expect(result?.agent?.isolation).toBe('container');
    const report = checkAgainstLedger(result === undefined ? [] : [result], stack.sim.ledger.entries(), 'processed');
    expect(report.mismatches).toEqual([]);
    expect(report.trainable_tokens).toBeGreaterThan(3);
    expect(report.exact_context_tokens).toBe(report.trainable_tokens);
  };

  itIf(
    piMissing,
    'runs pi, which reaches its model through the proxy, and grades its work in a fresh container',
    async () => {
      const [result] = await stack.run({ ...TASK, agent: { harness: 'pi' } });
      expectTrained(result);
      expect(result?.reward).toBe(1);
    },
  );

  itIf(piMissing, 'runs pi as a user of the image, and grades its work', async () => {
    const runtime = { ...TASK.runtime, user: 'postgres' };
    const [result] = await stack.run({ ...TASK, runtime, agent: { harness: 'pi' } });
    expectTrained(result);
    expect(result?.reward).toBe(1);
  });

  it('runs the agent, its preparation and the tests as a user of the image', async () => {
    const custom_shell = `${oneCall('hello')}; [ "$(id -u) $(stat -c %u config.txt)" = "70 70" ] && sed -i s/red/blue/ config.txt`;
    const evaluator = {
      ...TASK.evaluator,
      config: {
        ...TASK.evaluator?.config,
        test_command: '[ "$(id -u)" = 70 ] && grep -q blue config.txt && echo PASSED colour',
      },
    } as TaskRequestInput['evaluator'];
    const runtime = { ...TASK.runtime, user: 'postgres' };
    const [result] = await stack.run({ ...TASK, runtime, evaluator, agent: { harness: 'shell', custom_shell } });
    expectTrained(result);
    expect(result?.reward).toBe(1);
  });

  it('runs a command of the shell harness, and gives 0 to work that does not pass the tests', async () => {
    const custom_shell = `${oneCall('hello')}; echo 'colour = green' > config.txt`;
    const [result] = await stack.run({ ...TASK, agent: { harness: 'shell', custom_shell } });
    expectTrained(result);
    expect(result?.reward).toBe(0);
  });

  it('leaves no container after the sessions', async () => {
    // Sessions do not wait for the end of their sandboxes.
    await expect.poll(() => docker.containerCount(), { timeout: 60_000 }).toBe(0);
  });
});
