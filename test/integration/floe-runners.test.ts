import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { countdownScenario } from '../../packages/agents/test/host/countdown-scenario.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack } from './stack.ts';

const PLUGINS = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins');

const scenarios = parseScenarios(
  {
    scenarios: [
      countdownScenario,
      {
        name: 'double',
        match: { contains: 'Double' },
        rules: [
          { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'double', arguments: { number: 21 } } }] },
          { reply: [{ text: '42' }] },
        ],
      },
    ],
  },
  'the test',
);

let stack: TestStack;

beforeAll(async () => {
  stack = await startTestStack({
    scenarios,
    server: { plugins: ['countdown', 'countdown_runner', 'gem_runner', 'tool_runner'] },
    node: {
      default_backend: 'none',
      plugins: {
        agents: {
          countdown_runner: join(PLUGINS, 'countdown-runner.js'),
          gem_runner: join(PLUGINS, 'gem-runner.js'),
          tool_runner: join(PLUGINS, 'tool-runner.js'),
        },
        environments: { countdown: join(PLUGINS, 'countdown.js') },
        processes: 1,
      },
    },
  });
});
afterAll(() => stack.close());

type Options = Readonly<Record<string, unknown>>;

/** Runs a session whose agent is a runner, with `options` as its configuration. */
async function resultOf(
  agent: string,
  options: Options = {},
  task: Partial<TaskRequestInput> = {},
): Promise<SessionResult> {
  const [result] = await stack.run({
    instruction: '',
    max_attempts: 1,
    evaluator: { strategy: 'environment' },
    ...task,
    agent: { harness: 'floe', settings: { agent, options } },
  });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

describe('an agent that is a class of runners', () => {
  it('gives its score as the reward, the scores of its steps as rewards of replies, and one trace', async () => {
    const result = await resultOf('countdown_runner', { job: 'direct' });
    expect(result).toMatchObject({ outcome: 'completed', agent: { turns: 3, episode: { metrics: { said: 3 } } } });
    expect(result.reward).toBeCloseTo(1);
    expect(result.trajectory?.traces).toHaveLength(1);
  });

  it('reaches its model over HTTP at its base URL, with the id of its environment as key, and gets the same ids', async () => {
    const sampling = { seed: 5 };
    const direct = await resultOf('countdown_runner', { job: 'direct' }, { sampling });
    const overHttp = await resultOf('countdown_runner', { mode: 'http' }, { sampling });
    expect(overHttp).toMatchObject({ outcome: 'completed', reward: direct.reward });
    const traces = ({ trajectory }: SessionResult) =>
      trajectory?.traces.map(({ prompt_ids, response_ids, loss_mask, response_logprobs }) => ({
        ...{ prompt_ids, response_ids, loss_mask, response_logprobs },
      }));
    expect(traces(overHttp)).toEqual(traces(direct));
    expect(traces(direct)?.[0]?.response_ids.length).toBeGreaterThan(0);
  });

  it('keeps instances for further jobs with the same configuration, of which it sets up each once', async () => {
    const reasons: (string | undefined)[] = [];
    for (const run of [1, 1, 2]) {
      reasons.push((await resultOf('countdown_runner', { run })).agent?.episode?.reason);
    }
    expect(reasons).toEqual(['job 1 after 1 setups', 'job 2 after 1 setups', 'job 1 after 1 setups']);
  });

  it.each([
    ['Failed', 'agent_error', null],
    ['RunnerError', 'agent_error', null],
    ['NoData', 'env_error', null],
    ['Truncated', 'truncated_turns', 1],
  ])('ends as %s with the outcome %s', async (status, outcome, reward) => {
    const result = await resultOf('countdown_runner', { status });
    expect(result.outcome).toBe(outcome);
    if (reward === null) expect(result.reward).toBeNull();
    else expect(result.reward).toBeCloseTo(reward);
  });

  it('ends as Timeout with the outcome agent_timeout', async () => {
    expect((await resultOf('countdown_runner', { status: 'Timeout' })).outcome).toBe('agent_timeout');
  });

  it.each([
    ['throws', { mode: 'throw' }, /agent countdown_runner: the job broke/],
    ['returns no result', { mode: 'nonsense' }, /runJob returned "done"; its status must be one of Finished/],
    ['invents a status', { status: 'Great' }, /"status":"Great".*its status must be one of Finished/],
    ['has not one score for each reply', { mode: 'miscount' }, /2 scores of steps, and its model gave 3 replies/],
  ])('fails with an error of the plug-in when it %s', async (_, options, message) => {
    const result = await resultOf('countdown_runner', options);
    expect(result).toMatchObject({
      outcome: 'env_error',
      reward: null,
      error: { code: 'plugin_failed', message: expect.stringMatching(message) },
    });
  });

  it('plays the environment of its task as a GEMRunner', async () => {
    const environment = { type: 'countdown', seed: 7, config: {} };
    const result = await resultOf('gem_runner', {}, { environment });
    expect(result.outcome).toBe('completed');
    expect(result.reward).toBeCloseTo(1);
  });

  it('plays the environment that its configuration names as a GEMRunner', async () => {
    const options = { type: 'guess_number', config: { max_steps: 2 } };
    const result = await resultOf('gem_runner', options);
    expect(result).toMatchObject({ outcome: 'truncated_turns', reward: 0, agent: { turns: 2 } });
  });

  it('works with tools as a ToolCallRunner', async () => {
    const result = await resultOf('tool_runner', {}, { instruction: 'Double 21.' });
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 1,
      agent: { episode: { metrics: { 'calls.double': 1 } } },
    });
  });
});
