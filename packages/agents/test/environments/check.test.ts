import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { chatTool } from '../../src/environments/action.ts';
import { checkEnvironment } from '../../src/environments/check.ts';
import {
  defineEnvironment,
  type Environment,
  type EnvironmentDefinition,
  type PerfectPlay,
  type StepResult,
} from '../../src/environments/environment.ts';
import { guessNumber } from '../../src/environments/games/guess-number.ts';
import { createEnvironment } from './episodes.ts';

const options = { seeds: 5, malformed: 300, signal: new AbortController().signal };

type Change = {
  readonly environment?: (sound: Environment) => Partial<Environment>;
  readonly perfectPlay?: PerfectPlay;
};

/** Returns the number-guessing environment with some of its methods replaced. */
function changed({ environment, perfectPlay }: Change): EnvironmentDefinition {
  return defineEnvironment({
    name: 'changed',
    description: '',
    config: z.strictObject({}),
    create() {
      const sound = createEnvironment(guessNumber);
      const methods = environment?.(sound) ?? {};
      return {
        reset: methods.reset ?? ((seed) => sound.reset(seed)),
        step: methods.step ?? ((reply) => sound.step(reply)),
        close: methods.close ?? (() => sound.close()),
      };
    },
    perfectPlay: (_, seed) =>
      perfectPlay ?? (guessNumber.perfectPlay?.(guessNumber.config.parse({}), seed) as PerfectPlay),
  });
}

/** Returns a change of the environment in which `change` replaces the result of each step. */
function withStep(change: (result: StepResult, isTool: boolean) => StepResult): Change {
  return {
    environment: (sound) => ({
      step: async (reply) => change(await sound.step(reply), (reply.tool_calls ?? []).length > 0),
    }),
  };
}

let clock = 0;
let shared = 0;

describe('checkEnvironment', () => {
  it('passes a sound environment, and counts what it played', async () => {
    expect(await checkEnvironment(changed({}), {}, options)).toEqual({
      name: 'changed',
      episodes: 5,
      perfect: 1,
      random: expect.any(Number),
      idle: 0,
      turns: 1,
      malformed: 300,
      problems: [],
    });
  });

  it.each<[string, Change, RegExp]>([
    [
      'perfect play gets less',
      { perfectPlay: { replies: [], score: 1 } },
      /^perfect: seed 0: perfect play gets 0 instead/,
    ],
    ['random play gets as much', withStep((result) => ({ ...result, reward: 0 })), /^random: random play gets 0/],
    [
      'empty replies get a reward',
      withStep((result, isTool) => (isTool ? result : { ...result, reward: 0.01 })),
      /^idle: seed 0: empty replies get 0.07/,
    ],
    [
      'it never ends',
      withStep((result) => ({ ...result, truncated: false })),
      /^end: seed 0: the episode does not end/,
    ],
    [
      'it rejects',
      { environment: () => ({ step: () => Promise.reject(new Error('broken')) }) },
      /^errors: seed 0: broken/,
    ],
    [
      'a repeat differs',
      withStep((result) => ({ ...result, stateHash: String(clock++) })),
      /^same seed: seed 0: a repeat has other observations/,
    ],
    [
      'it shares state with another episode',
      {
        environment: (sound) => ({
          reset(seed) {
            shared = 0;
            return sound.reset(seed);
          },
          step: async (reply) => ({ ...(await sound.step(reply)), stateHash: String(shared++) }),
        }),
      },
      /^two at once: seed 0: another episode/,
    ],
    [
      'a call is not answered',
      withStep((result) => ({ ...result, messages: [{ role: 'user', content: 'What?' }] })),
      /^malformed: reply \d+: \d+ tool calls have 0 answers/,
    ],
    ['a reward is not a number', withStep((result) => ({ ...result, reward: Number.NaN })), /reward is NaN/],
    [
      'an observation repeats what is not Unicode',
      withStep((result) => ({
        ...result,
        messages: result.messages.map((message) => ({ ...message, content: 'x\ud800' }) as typeof message),
      })),
      /an answer is not valid Unicode/,
    ],
    [
      'no seed has an episode',
      { environment: () => ({ reset: async () => null }) },
      /^episodes: no seed has an episode/,
    ],
  ])('reports that %s', async (_, change, problem) => {
    const { problems } = await checkEnvironment(changed(change), {}, options);
    expect(problems).toContainEqual(expect.stringMatching(problem));
  });

  it('checks an environment without perfect play by random play', async () => {
    const { perfectPlay: _, ...definition } = changed({});
    expect(await checkEnvironment(definition, {}, options)).toMatchObject({ perfect: null, turns: null, problems: [] });
  });

  it('ends when the signal aborts', async () => {
    const signal = AbortSignal.abort(new Error('stopped'));
    await expect(checkEnvironment(changed({}), {}, { ...options, signal })).rejects.toThrow('stopped');
  });

  it('plays tools with arguments of any type', async () => {
    const schema = z.strictObject({
      flag: z.boolean(),
      list: z.array(z.int()),
      inner: z.strictObject({ x: z.number() }),
    });
    const tool = chatTool('act', 'Acts.', schema);
    let valid = 0;
    const definition = changed({
      environment: (sound) => ({
        reset: async (seed) => ({ messages: (await sound.reset(seed))?.messages ?? [], tools: [tool] }),
        step(reply) {
          if (schema.safeParse(JSON.parse(reply.tool_calls?.[0]?.function.arguments ?? '{}')).success) valid++;
          return sound.step(reply);
        },
      }),
    });
    await checkEnvironment(definition, {}, { ...options, malformed: 0 });
    expect(valid).toBeGreaterThan(20);
  });
});
