import { readFile } from 'node:fs/promises';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, parseScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { startTestStack, type TestStack } from './stack.ts';

const judging = (...replies: string[]) =>
  replies.map((text, turn) => ({
    when: { system: { contains: 'You judge' }, assistant_turns: turn },
    reply: [{ text }],
  }));
const others = [
  { when: { system: { contains: 'You review' } }, reply: [{ text: 'Count 1 and 360, too.' }] },
  { when: { system: { contains: 'listing cases' } }, reply: [{ text: 'It has 22.' }] },
  { when: { last_user: { contains: 'Comments on your answer' } }, reply: [{ text: 'It has 24.' }] },
  { reply: [{ text: 'It has 20.' }] },
];
const scenarios = parseScenarios(
  {
    scenarios: [
      {
        name: 'scored',
        match: { contains: 'divisors has 360' },
        rules: [...judging('{"score": 1}', '0.25'), ...others],
      },
      {
        name: 'asked-again',
        match: { contains: 'of 361' },
        rules: [...judging('Fine!', 'So: {"score": 0.5}.'), ...others],
      },
      { name: 'pools', match: { contains: 'of 363' }, rules: [...judging('{"score": 0.5}'), ...others] },
      { name: 'unscored', match: { contains: 'of 362' }, rules: [...judging('Fine!', '{"score": 7}'), ...others] },
    ],
  },
  'the test',
);

let stack: TestStack;
let second: SimServer;
beforeAll(async () => {
  // Another model. Its policy gives other replies than the policy of the first model.
  const review = [{ when: { system: { contains: 'You review' } }, reply: [{ text: 'The second model agrees.' }] }];
  const rules = [...review, ...judging('{"score": 0.75}')];
  second = await startSim({
    model: 'second-model',
    scaleOut: true,
    templateMode: 'strip_thinking',
    scenarios: parseScenarios({ scenarios: [{ name: 'second', match: { contains: 'of 363' }, rules }] }, 'the test'),
  });
  stack = await startTestStack({ scenarios, sim: { scaleOut: true }, node: { default_backend: 'none' } });
  await stack.client.addEngine({ base_url: second.url, pool: 'second' });
});
afterAll(async () => {
  await stack.close();
  await second.close();
});

async function resultOf(changes: Partial<TaskRequestInput> = {}): Promise<SessionResult> {
  const task = parse(await readFile('examples/agents/multi/task.yaml', 'utf8')) as TaskRequestInput;
  const [result] = await stack.run({ ...task, num_samples: 1, max_attempts: 1, ...changes });
  if (result === undefined) throw new Error('the session has no result');
  return result;
}

const withSeats = (...seats: object[]): TaskRequestInput['agent'] => ({
  harness: 'floe',
  settings: { agent: 'multi', options: { seats } },
});
const SOLVER = { name: 's', role: 'solver' };
const JUDGE = { name: 'j', role: 'judge' };

describe('the agent multi', () => {
  it('gives each seat a trace and a score of its own, and trains no judge', async () => {
    const result = await resultOf();
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 0.625,
      agent: {
        episode: {
          score: 0.625,
          seat_scores: { 'solver-a': 1, 'solver-b': 0.25, critic: 0.625 },
          metrics: { rounds: 1 },
        },
      },
    });
    const traces = result.trajectory?.traces ?? [];
    const rewards = Object.fromEntries(traces.map(({ metadata, reward }) => [metadata.thread, reward]));
    expect(rewards).toEqual({ main: 1, 'solver-b': 0.25, critic: 0.625 });
    const last = traces.find(({ metadata }) => metadata.thread === 'main')?.response_messages.at(-1);
    expect(last?.content).toBe('It has 24.');
    expect(checkAgainstLedger([result], stack.sim.ledger.entries(), 'processed')).toMatchObject({ mismatches: [] });
  });

  it('lets seats use engines of other pools, each with its own traces, scores and training', async () => {
    const critic = { name: 'c', role: 'critic', engine_pool: 'second' };
    const judge = { ...JUDGE, engine_pool: 'second' };
    const engine = { mode: 'tokens' as const, extra_pools: ['second'] };
    const agent = withSeats(SOLVER, critic, judge);
    const result = await resultOf({ agent, engine, instruction: 'Divisors of 363?' });
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 0.75,
      agent: { episode: { seat_scores: { s: 0.75, c: 0.75 } } },
    });
    const traces = result.trajectory?.traces ?? [];
    const seats = traces.map(({ metadata, reward }) => [metadata.thread, metadata.model, reward]);
    expect(seats).toEqual([
      ['main', 'floe-sim', 0.75],
      ['c', 'second-model', 0.75],
    ]);
    expect(traces[0]?.response_messages.map(({ content }) => content).join()).toContain('The second model agrees.');
    expect(result.trajectory?.audit.completions).toMatchObject({ recorded: 4, trained: 3 });
    const entries = [...stack.sim.ledger.entries(), ...second.ledger.entries()];
    expect(checkAgainstLedger([result], entries, 'processed')).toMatchObject({ mismatches: [] });
    // The engine's registration makes calls, too.
    expect(second.ledger.entries().filter(({ request_id: id }) => id.startsWith('cpl_'))).toHaveLength(2);
  });

  it('asks a judge without a score once more, and fails without one', async () => {
    const agent = withSeats(SOLVER, JUDGE);
    const scored = await resultOf({ agent, instruction: 'Divisors of 361?' });
    expect(scored).toMatchObject({ outcome: 'completed', reward: 0.5 });
    // The judge's replies are not trained, because its seat does not request it.
    expect(scored.trajectory?.traces.map(({ metadata }) => metadata.thread)).toEqual(['main']);
    expect(await resultOf({ agent, instruction: 'Divisors of 362?' })).toMatchObject({
      outcome: 'agent_error',
      reward: null,
      agent: { episode: { reason: 'the judge j gave no score' } },
    });
  });

  it('leaves the reward to an evaluator when there is no judge', async () => {
    const evaluator = { strategy: 'answer', config: { kind: 'exact', expected: 'It has 20.' } };
    const result = await resultOf({ agent: withSeats(SOLVER), evaluator });
    expect(result).toMatchObject({ outcome: 'completed', reward: 1, agent: { episode: { score: null } } });
  });

  it.each([
    ['no solver', [JUDGE], 'must have a solver'],
    ['two judges', [SOLVER, JUDGE, { ...JUDGE, name: 'k' }], 'must have at most one judge'],
    ['one name twice', [SOLVER, SOLVER], 'must have different names'],
    [
      'an engine pool of the first seat',
      [{ ...SOLVER, engine_pool: 'second' }, JUDGE],
      'the first seat uses engine.pool',
    ],
    [
      'a pool that the task does not list',
      [SOLVER, { ...JUDGE, engine_pool: 'second' }],
      'engine.extra_pools: the agent multi uses the engine pool second, which is not among them',
    ],
  ])('is refused with %s', async (_, seats, message) => {
    await expect(resultOf({ agent: withSeats(...seats) })).rejects.toThrow(message);
  });
});
