import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { countdownScenario } from '../../packages/agents/test/host/countdown-scenario.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { startTestStack, type TestStack } from './stack.ts';

const COUNTDOWN = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'countdown.js');

const scenarios = parseScenarios(
  {
    scenarios: [
      countdownScenario,
      {
        name: 'clumsy',
        match: { contains: 'Think' },
        rules: [
          { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'think', arguments: { thought: 'hm' } } }] },
          { when: { assistant_turns: 1 }, reply: [{ call: { tool: 'think', arguments: { thoughts: 'typo' } } }] },
          { when: { assistant_turns: 2 }, reply: [{ call: { tool: 'unheard', arguments: {} } }] },
          { when: { assistant_turns: 3 }, reply: [{ raw: '<tool_call>\n{"name": "think", "arg\n</tool_call>' }] },
          { when: { assistant_turns: 4 }, reply: [{ text: 'I think that I am done.' }] },
          { reply: [{ call: { tool: 'finish', arguments: { answer: '42' } } }] },
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
    server: { plugins: ['countdown'] },
    node: {
      default_backend: 'none',
      plugins: { environments: { countdown: COUNTDOWN }, blocked_seconds: 5 },
    },
  });
});
afterAll(() => stack.close());

/** Runs a task of one sample and returns its result. */
async function resultOf(task: Partial<TaskRequestInput> & Pick<TaskRequestInput, 'agent'>): Promise<SessionResult> {
  const [result] = await stack.run({ instruction: '', max_attempts: 1, ...task });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

function playing(config: Record<string, unknown> = {}): Partial<TaskRequestInput> & Pick<TaskRequestInput, 'agent'> {
  return {
    agent: { harness: 'floe', settings: { agent: 'gym' } },
    environment: { type: 'countdown', seed: 7, config },
    evaluator: { strategy: 'environment' },
  };
}

describe('an agent of the harness floe', () => {
  it('plays an environment of the operator, with its score as reward, and every token is as sampled', async () => {
    const result = await resultOf(playing());
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 1,
      agent: { turns: 3, episode: { status: 'finished', score: 1, metrics: { turns: 3 } } },
    });
    expect(result.trajectory?.traces).toHaveLength(1);
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({
      sessions: 1,
      mismatches: [],
    });
  });

  it.each(['step', 'step_concat'])('makes a trace of each step with the history %s', async (history) => {
    const task = playing();
    const settings = { agent: 'gym', options: { history } };
    const result = await resultOf({
      ...task,
      agent: { harness: 'floe', settings },
      builder: { strategy: 'per_request' },
    });
    expect(result.reward).toBe(1);
    const traces = result.trajectory?.traces ?? [];
    expect(traces).toHaveLength(3);
    // Each prompt is independent: it contains no earlier reply.
    for (const trace of traces) expect(trace.prompt_messages.map(({ role }) => role)).not.toContain('assistant');
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
  });

  it('answers broken calls with what is wrong, counts them by kind, and names its answer', async () => {
    const result = await resultOf({
      instruction: 'Think, then finish.',
      agent: {
        harness: 'floe',
        settings: { agent: 'tool_call', tools: ['think', 'finish'], options: { answers_in_text: false } },
      },
      evaluator: { strategy: 'answer', config: { kind: 'exact', expected: '42' } },
    });
    expect(result.agent?.episode).toMatchObject({
      status: 'finished',
      metrics: {
        turns: 6,
        no_call: 1,
        'broken.bad_json': 1,
        'broken.bad_arguments': 1,
        'broken.unknown_tool': 1,
        'calls.think': 1,
        'calls.finish': 1,
      },
    });
    expect(result.reward).toBe(1);
  });
});

describe('a plug-in with a defect', () => {
  it.each([
    ['throws', 'throw', /environment countdown: the world broke/],
    ['shows an invalid image', 'image', /environment countdown: its observation: an image is not valid base64/],
    ['throws outside of its promises', 'crash', /code of this episode.*thrown from a timer/],
    ['blocks its process', 'block', /code of this episode.*blocked a process for agents/],
    ['has no episode', 'no_data', /no episode for this seed/],
  ])('that %s ends its own session with an error that says so', async (_, fail, message) => {
    const result = await resultOf(playing({ fail }));
    expect(result).toMatchObject({
      outcome: 'env_error',
      reward: null,
      error: { message: expect.stringMatching(message) },
    });
    // The next session runs in a new process.
    expect((await resultOf(playing())).reward).toBe(1);
  });
});
