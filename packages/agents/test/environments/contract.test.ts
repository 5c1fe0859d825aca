import { type AssistantMessage, assistantMessageSchema, chatMessageSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../test/effort.ts';
import { checkEnvironment } from '../../src/environments/check.ts';
import { ENVIRONMENTS, findEnvironment, parseEnvironmentConfig } from '../../src/environments/registry.ts';
import { createEnvironment, playReplies, scoreOf } from './episodes.ts';

const { signal } = new AbortController();

/** Configurations that are checked in addition to the default configuration of every environment. */
const CONFIGS: readonly (readonly [name: string, config: object])[] = [
  ...ENVIRONMENTS.map(({ name }): [string, object] => [name, {}]),
  ['sokoban', { dim_room: [7, 8], num_boxes: 2, action_format: 'text' }],
  ['sokoban', { max_steps: 10, step_reward: -0.01, box_reward: 1, success_reward: 10 }],
  ['frozen_lake', { size: 5, slippery: true, max_steps: 60 }],
  ['frozen_lake', { action_format: 'text', step_reward: -0.01, hole_reward: -1 }],
  ['sokoban', { observation: 'image' }],
  ['frozen_lake', { observation: 'image', action_format: 'text' }],
  ['bandit', { arms: 2, pulls: 50, action_format: 'text' }],
  ['guess_number', { min: -10, max: 10, max_steps: 3, action_format: 'text' }],
  ['wordle', { words: ['cat', 'dog', 'cow'], action_format: 'text' }],
  ['blackjack', { action_format: 'text', draw_reward: 0 }],
  ['tic_tac_toe', { opponent: 'perfect' }],
  ['tic_tac_toe', { opponent: 'perfect', side: 'o', action_format: 'text' }],
  ['tic_tac_toe', { opponent: 'self' }],
  ['shop', { kinds: ['refund'], customers: 3, max_steps: 8 }],
];

const ids = fc.oneof(fc.constantFrom('', 'call_0', 'a'), fc.string({ unit: 'binary' }));
const names = fc.oneof(
  fc.constantFrom(
    'move',
    'pull',
    'guess',
    'play',
    'place',
    'find_customer',
    'cancel_order',
    'refund_order',
    'update_address',
  ),
  fc.string({ unit: 'binary' }),
);
const argumentTexts = fc.oneof(
  fc.json(),
  fc.string({ unit: 'binary' }),
  fc
    .dictionary(
      fc.constantFrom('direction', 'arm', 'number', 'word', 'cell', 'order_id', 'address', 'email'),
      fc.jsonValue(),
    )
    .map((args) => JSON.stringify(args)),
);
const toolCalls = fc.record({
  id: ids,
  type: fc.constant('function' as const),
  function: fc.record({ name: names, arguments: argumentTexts }),
});
const replies: fc.Arbitrary<AssistantMessage> = fc.record(
  {
    role: fc.constant('assistant' as const),
    content: fc.option(
      fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom('up', '<answer>3</answer>', '\\boxed{hit}')),
    ),
    tool_calls: fc.array(toolCalls, { maxLength: 5 }),
  },
  { requiredKeys: ['role', 'content'] },
);

describe.each(CONFIGS)('%s with %j', (name, config) => {
  const definition = findEnvironment(name);

  it('passes the check of environments', async () => {
    const check = await checkEnvironment(definition, config, { seeds: 12, malformed: 200, signal });
    expect(check).toMatchObject({ problems: [], idle: 0, episodes: 12 });
    expect(check.perfect).toBeGreaterThan(check.random ?? Number.POSITIVE_INFINITY);
  });

  it('answers any replies, and never rejects', async () => {
    const environment = createEnvironment(definition, config);
    await fc.assert(
      fc.asyncProperty(fc.nat(), fc.array(replies, { minLength: 1, maxLength: 8 }), async (seed, played) => {
        expect(await environment.reset(seed)).not.toBeNull();
        for (const reply of played) {
          const { messages, answers = [], reward, terminated, truncated } = await environment.step(reply);
          const all = [...answers, ...messages].map((message) => chatMessageSchema.parse(message));
          const answered = all.flatMap((message) => (message.role === 'tool' ? [message.tool_call_id] : []));
          expect(answered).toEqual((reply.tool_calls ?? []).map(({ id }) => id));
          expect(all.length).toBeGreaterThan(0);
          expect(Number.isFinite(reward)).toBe(true);
          expect(terminated && truncated).toBe(false);
        }
      }),
      { numRuns: runs(40) },
    );
    await environment.close();
  });

  it('has perfect play of valid replies for any seed', async () => {
    const parsed = parseEnvironmentConfig(definition, config);
    await fc.assert(
      fc.asyncProperty(fc.maxSafeNat(), async (seed) => {
        const environment = createEnvironment(definition, config);
        const play = definition.perfectPlay?.(parsed, seed);
        expect(await environment.reset(seed)).not.toBeNull();
        const results = await playReplies(environment, play?.replies ?? []);
        await environment.close();
        for (const reply of play?.replies ?? []) expect(assistantMessageSchema.safeParse(reply).success).toBe(true);
        expect(scoreOf(results)).toBeCloseTo(play?.score ?? Number.NaN, 6);
        expect(results.at(-1)?.metrics?.invalid_actions).toBe(0);
      }),
      { numRuns: 10 },
    );
  });

  it('makes different episodes of different seeds', async () => {
    const environment = createEnvironment(definition, config);
    const hashes = new Set<string | undefined>();
    for (let seed = 0; seed < 20; seed++) hashes.add((await environment.reset(seed))?.stateHash);
    await environment.close();
    // In tic-tac-toe the agent plays x and moves first, so the first board is empty for every seed.
    expect(hashes.size).toBeGreaterThan(name === 'tic_tac_toe' ? 0 : 2);
  });
});
