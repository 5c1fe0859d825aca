import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startNode } from '#floe/up/stack';
import { countdownScenario } from '../../packages/agents/test/host/countdown-scenario.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack } from './stack.ts';

const path = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'python');
const scenarios = parseScenarios(
  {
    scenarios: [
      countdownScenario,
      {
        name: 'calculator',
        match: { contains: 'Add 20 and 22' },
        rules: [
          { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'add', arguments: { a: 20, b: 22 } } }] },
          { reply: [{ text: '42' }] },
        ],
      },
      { name: 'sums', match: { contains: '1 + 2' }, rules: [{ reply: [{ text: '3' }] }] },
    ],
  },
  'the test',
);

const environment = (name: string, fields: object = {}) => ({
  kind: 'environment' as const,
  target: `worlds:${name}`,
  path,
  ...fields,
});
const runner = (name: string) => ({ kind: 'runner' as const, target: `roll_runner.${name}`, path });

let stack: TestStack;
beforeAll(async () => {
  stack = await startTestStack({
    scenarios,
    server: {
      prorl_handlers: {
        python_sums: {
          instruction: '',
          agent: { harness: 'floe', settings: { agent: 'handler' } },
          runtime: { backend: 'none' },
          evaluator: { strategy: 'environment' },
          metadata: { instance: '{{instance}}' },
        },
      },
      plugins: ['countdown', 'calculator', 'misbehaving', 'runner', 'kept', 'constructed', 'broken', 'http'],
    },
    node: {
      default_backend: 'none',
      allow_local: true,
      plugins: {
        python: {
          countdown: environment('Countdown'),
          calculator: environment('Calculator'),
          misbehaving: environment('Misbehaving', { call_seconds: 5, options: { secret: 'x' } }),
          runner: runner('CountdownRunner'),
          kept: runner('KeptRunner'),
          constructed: runner('ConstructedRunner'),
          broken: runner('BrokenRunner'),
          http: runner('HttpRunner'),
          sums: { kind: 'handler', target: 'sums_handler:Sums', path },
        },
        processes: 1,
      },
    },
  });
});
afterAll(() => stack.close());

async function resultOf(task: Partial<TaskRequestInput>): Promise<SessionResult> {
  const [result] = await stack.run({
    instruction: '',
    max_attempts: 1,
    evaluator: { strategy: 'environment' },
    agent: { harness: 'floe', settings: { agent: 'gym' } },
    ...task,
  });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

const played = (type: string, config: object = {}) =>
  resultOf({ environment: { type, config: { ...config }, seed: 7 } });
const jobOf = (agent: string, options: Record<string, unknown> = {}) =>
  resultOf({ agent: { harness: 'floe', settings: { agent, options } } });

describe('a Python environment', () => {
  it('is played like one of floe, with rewards of its steps and its numbers as metrics', async () => {
    const result = await played('countdown', { options: { start: 3 } });
    expect(result).toMatchObject({
      outcome: 'completed',
      agent: { turns: 3, episode: { metrics: { 'env.success': 1 } } },
    });
    expect(result.reward).toBeCloseTo(1);
    expect(result.trajectory?.traces).toHaveLength(1);
  });

  it('takes tool calls as messages, and may return the whole conversation', async () => {
    expect(await played('calculator')).toMatchObject({ outcome: 'completed', reward: 1, agent: { turns: 2 } });
  });

  it('is ended after max_steps', async () => {
    expect(await played('countdown', { max_steps: 2 })).toMatchObject({ outcome: 'truncated_turns' });
  });

  it('cannot have options that the operator has set', async () => {
    expect(await played('misbehaving', { options: { deed: 'throw', secret: 'y' } })).toMatchObject({
      error: { code: 'schema_violation', message: expect.stringContaining('environment.config.options.secret') },
    });
  });
});

describe('a class of runners that was written for ROLL', () => {
  it('runs as it is: its score is the reward, its step scores are rewards of replies, and it has one trace', async () => {
    const result = await jobOf('runner', { max_steps: 5, config: { start: 3 } });
    expect(result).toMatchObject({
      outcome: 'completed',
      agent: { turns: 3, episode: { reason: '1 setups, mode train', metrics: { steps: 3 } } },
    });
    expect(result.reward).toBeCloseTo(1);
    expect(result.trajectory?.traces).toHaveLength(1);
  });

  it('is set up once, also when its constructor does it', async () => {
    expect((await jobOf('constructed')).agent?.episode?.reason).toBe('1 setups, mode train');
  });

  it('does further jobs with one instance when it says so', async () => {
    for (const _ of [1, 2]) expect((await jobOf('kept')).agent?.episode?.reason).toBe('1 setups, mode train');
  });

  it('may ask the model over HTTP', async () => {
    expect(await jobOf('http')).toMatchObject({ outcome: 'completed', reward: 1 });
  });

  it.each([
    ['Failed', 'agent_error'],
    ['NoData', 'env_error'],
    ['Timeout', 'agent_timeout'],
  ])('ends as %s with the outcome %s', async (status, outcome) => {
    expect(await jobOf('runner', { status })).toMatchObject({ outcome, reward: null });
  });

  it.each([
    ['throws', 'throw', /agent broken: KeyError: 'no such row'/],
    ['returns no result', 'nonsense', /run_job returned .*done.*; its status must be one of Finished/],
  ])('fails with an error of the plug-in when it %s', async (_, deed, message) => {
    expect(await jobOf('broken', { deed })).toMatchObject({
      outcome: 'env_error',
      error: { code: 'plugin_failed', message: expect.stringMatching(message) },
    });
  });
});

describe('a Python handler', () => {
  const handled = (fields: object = {}, task: Partial<TaskRequestInput> = {}) =>
    resultOf({
      agent: { harness: 'floe', settings: { agent: 'handler' } },
      metadata: { data_source: 'python_sums', instance: { a: 1, b: 2, ...fields } },
      ...task,
    });

  it('goes through its three stages, and changes its result at the end', async () => {
    expect(await handled()).toMatchObject({
      outcome: 'completed',
      reward: 1,
      agent: { episode: { metrics: { sums: 1, final: 1 } } },
    });
  });

  it('acts in the sandbox', async () => {
    expect(await handled({}, { runtime: { backend: 'local' } })).toMatchObject({ outcome: 'completed', reward: 1 });
  });

  it.each([
    ['init', 'env_error'],
    ['run', 'agent_error'],
    ['eval', 'verifier_error'],
  ])('whose stage %s fails ends as %s, unless its callback gives an evaluation', async (stage, outcome) => {
    expect(await handled({ [stage]: 'fail' })).toMatchObject({ outcome, reward: null });
    expect(await handled({ [stage]: 'rescue' })).toMatchObject({ outcome: 'completed', reward: 0.5 });
  });

  it("is driven by ProRL Agent's routes", async () => {
    const reply = await fetch(`${stack.serverUrl}/process`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ instance: { data_source: 'python_sums', a: 1, b: 2 }, sampling_params: {} }),
    });
    expect(await reply.json()).toMatchObject({ success: true, resolved: true, reward: 1 });
  });

  it('whose process ends is to blame', async () => {
    expect(await handled({ run: 'vanish' })).toMatchObject({
      outcome: 'env_error',
      error: { code: 'plugin_failed', message: expect.stringContaining('plugins.python.sums: its process ended (3)') },
    });
  });
});

describe('a node with a Python plug-in', () => {
  it('does not start when the plug-in cannot be imported', async () => {
    const python = { absent: environment('Absent') };
    const config = { node_id: 'other', server_url: stack.serverUrl, state_dir: join(stack.dir, 'other'), engines: [] };
    await expect(
      startNode({ ...config, harness_dir: join(stack.dir, 'other'), plugins: { python } }, silentLogger),
    ).rejects.toMatchObject({
      code: 'setup_failed',
      message: 'plugins.python.absent: worlds:Absent cannot be loaded: ImportError: module worlds has no Absent',
    });
  });

  it('continues its other sessions when the process of one plug-in is killed', async () => {
    const killed = played('misbehaving', { options: { deed: 'kill' } });
    const others = [played('countdown'), jobOf('runner'), played('calculator')];
    expect((await killed).outcome).toBe('env_error');
    expect((await Promise.all(others)).map(({ outcome }) => outcome)).toEqual(['completed', 'completed', 'completed']);
    expect(await played('misbehaving', { options: { deed: 'none' } })).toMatchObject({ outcome: 'completed' });
  });
});

describe('a Python environment that misbehaves', () => {
  it.each([
    ['throw', /environment misbehaving: step: ValueError: the step broke/],
    ['exit', /step: SystemExit: 3/],
    ['refuse', /reset: RuntimeError: it will not be made/],
    ['object', /step: TypeError: the observation, of type object, is no text/],
    ['cycle', /step: TypeError: .*Circular/],
    ['huge', /step: ValueError: what it returned has 1000\d+ bytes as JSON/],
    ['short', /step: TypeError: step must return \(observation, reward, terminated/],
    ['infinite', /step: ValueError: the reward that step returned is inf/],
    ['vanish', /plugins.python.misbehaving: its process ended \(3\)/],
    ['leave', /plugins.python.misbehaving: its process ended \(3\)/],
    ['kill', /plugins.python.misbehaving: its process ended \(SIGKILL\)/],
    ['block', /step did not return within 5 s/],
  ])('costs its own session when its step does this: %s', async (deed, message) => {
    expect(await played('misbehaving', { options: { deed } })).toMatchObject({
      outcome: 'env_error',
      reward: null,
      error: { code: 'plugin_failed', message: expect.stringMatching(message) },
    });
  });

  it.each(['print', 'none'])('changes nothing when its step does this: %s', async (deed) => {
    expect(await played('misbehaving', { options: { deed } })).toMatchObject({ outcome: 'completed', reward: 1 });
  });
});
