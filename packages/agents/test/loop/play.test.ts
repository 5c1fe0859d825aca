import type { ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Environment, StepResult } from '../../src/environments/environment.ts';
import { mainConversation } from '../../src/loop/conversation.ts';
import type { Episode } from '../../src/loop/episode.ts';
import { type PlayOptions, playEnvironment } from '../../src/loop/play.ts';

/** A world of three steps, in which every second step belongs to another player when there are two. */
function world(seats: readonly string[]): Environment {
  let steps = 0;
  const introduced = new Set<string | undefined>();
  const position = () => {
    const seat = seats[steps % Math.max(1, seats.length)];
    const isNew = !introduced.has(seat);
    introduced.add(seat);
    return {
      messages: [{ role: 'user' as const, content: `state ${steps}` }],
      stateHash: `h${steps}`,
      ...(isNew ? { introduction: `The rules${seat === undefined ? '' : ` for ${seat}`}.` } : {}),
      ...(seat === undefined ? {} : { seat }),
    };
  };
  return {
    reset: async () => position(),
    async step(): Promise<StepResult> {
      steps++;
      const rewards = seats.length === 0 ? {} : { seatRewards: { [seats[(steps - 1) % seats.length] ?? '']: steps } };
      return { ...position(), ...rewards, reward: steps, terminated: steps === 3, truncated: false };
    },
    close: async () => {},
  };
}

async function played(environment: Environment, options: Partial<PlayOptions> = {}) {
  const prompts: (readonly ChatMessage[])[] = [];
  const threads: string[] = [];
  const { signal } = new AbortController();
  const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
  const conversation = mainConversation(
    {
      async ask({ messages, thread }) {
        prompts.push([...messages]);
        threads.push(thread);
        const content = `reply ${prompts.length}`;
        return {
          completionId: `c${prompts.length}`,
          message: { role: 'assistant', content },
          finishReason: 'stop',
          usage,
        };
      },
    },
    signal,
  );
  const episode: Episode = {
    ...{ seed: 0, instruction: 'Play.', systemPrompt: null, metadata: {}, settings: {}, hints: false, box: null },
    ...{
      environment,
      tools: [],
      toolInstructions: [],
      conversation,
      services: {},
      signal,
      limits: { turns: null, contextTokens: null },
    },
    left: () => ({ turns: null, contextTokens: null }),
    count: () => {},
    measure: () => {},
  };
  const result = await playEnvironment(episode, {
    history: 'append',
    summarySteps: 1,
    maxTokensPerStep: null,
    ...options,
  });
  return { result, prompts: prompts.map((prompt) => prompt.map(({ content }) => content)), threads };
}

describe('playing an environment', () => {
  it('appends each observation, with the rules before the first, and sums the rewards', async () => {
    const { result, prompts } = await played(world([]));
    expect(prompts[0]).toEqual(['Play.', 'The rules.\n\nstate 0']);
    expect(prompts[2]).toEqual(['Play.', 'The rules.\n\nstate 0', 'reply 1', 'state 1', 'reply 2', 'state 2']);
    expect(result).toMatchObject({
      status: 'finished',
      score: 6,
      replyRewards: [
        { completionId: 'c1', reward: 1, stateHash: 'h0' },
        { completionId: 'c2', reward: 2, stateHash: 'h1' },
        { completionId: 'c3', reward: 3, stateHash: 'h2' },
      ],
    });
  });

  it('repeats the rules and the last steps in each prompt of the history step', async () => {
    const { prompts } = await played(world([]), { history: 'step' });
    expect(prompts[1]).toEqual([
      'Play.',
      'The rules.\n\nEarlier steps (1):\n\nStep 1:\nstate 0\nYour reply: reply 1\n\nstate 1',
    ]);
    expect(prompts[2]).toEqual([
      'Play.',
      'The rules.\n\nEarlier steps (2):\n\nStep 2:\nstate 1\nYour reply: reply 2\n\nstate 2',
    ]);
  });

  it('shows the images of the current observation, and those of earlier steps as a text', async () => {
    const image = (step: number) => ({
      type: 'image_url' as const,
      image_url: { url: `data:image/png;base64,AA0${step}` },
    });
    const drawn: Environment = {
      ...world([]),
      reset: async () => ({ introduction: 'The rules.', messages: [{ role: 'user', content: [image(0)] }] }),
      step: (() => {
        let steps = 0;
        return async (): Promise<StepResult> => ({
          messages: [{ role: 'user', content: [{ type: 'text', text: 'moved' }, image(++steps)] }],
          ...{ reward: 0, terminated: steps === 2, truncated: false },
        });
      })(),
    };
    const text = (value: string) => ({ type: 'text', text: value });
    const { prompts } = await played(drawn, { history: 'step' });
    const [first, second] = prompts;
    expect(first?.at(-1)).toEqual([text('The rules.'), image(0)]);
    expect(second?.at(-1)).toEqual([
      text('The rules.\n\nEarlier steps (1):\n\nStep 1:\n[image]\nYour reply: reply 1'),
      text('moved'),
      image(1),
    ]);
  });

  it('concatenates what was observed in the last steps in each prompt of the history step_concat', async () => {
    const { prompts, result } = await played(world([]), { history: 'step_concat', summarySteps: 2 });
    expect(prompts).toEqual([
      ['Play.', 'The rules.\n\nstate 0'],
      ['Play.', 'The rules.\n\nstate 0\n\nstate 1'],
      ['Play.', 'The rules.\n\nstate 0\n\nstate 1\n\nstate 2'],
    ]);
    expect(result.replyRewards).toMatchObject([{ reward: 1, stateHash: 'h0' }, { reward: 2 }, { reward: 3 }]);
    const last = await played(world([]), { history: 'step_concat', summarySteps: 1 });
    expect(last.prompts[2]).toEqual(['Play.', 'The rules.\n\nstate 1\n\nstate 2']);
  });

  it('gives each player a conversation and a score', async () => {
    const { result, prompts, threads } = await played(world(['x', 'o']));
    expect(threads).toEqual(['main', 'o', 'main']);
    expect(prompts[1]).toEqual(['Play.', 'The rules for o.\n\nstate 1']);
    expect(prompts[2]).toEqual(['Play.', 'The rules for x.\n\nstate 0', 'reply 1', 'state 2']);
    expect(result).toMatchObject({
      seatScores: { x: 4, o: 2 },
      replyRewards: [{ seat: 'x' }, { seat: 'o' }, { seat: 'x' }],
    });
  });
});
