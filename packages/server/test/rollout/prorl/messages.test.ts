import type { ChatMessage, Trace, Trajectory } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { conversationOf } from '../../../src/rollout/prorl/messages.ts';

const user = (content: string): ChatMessage => ({ role: 'user', content });
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content });

function call(
  prompt: ChatMessage[],
  promptIds: number[],
  reply: ChatMessage,
  responseIds: number[],
  metadata = {},
): Trace {
  return {
    trace_id: 't',
    prompt_ids: promptIds,
    response_ids: responseIds,
    loss_mask: responseIds.map(() => 1),
    response_logprobs: responseIds.map((id) => -id),
    version_spans: [],
    constrained_spans: [],
    prompt_messages: prompt,
    response_messages: [reply],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward: 1,
    completion_ids: [],
    metadata: { call_kind: 'main', thread: 'main', ...metadata },
  };
}

const trajectoryOf = (traces: Trace[]): Trajectory => ({ traces }) as Trajectory;

describe('conversationOf', () => {
  const first = call([user('u1')], [1, 2], assistant('a1'), [3, 4]);

  it('gives each reply the ids of its call, and the ids between replies to the messages between them', () => {
    const history = [user('u1'), assistant('a1'), user('u2')];
    const second = call(history, [1, 2, 3, 4, 5, 6], assistant('a2'), [7]);
    const { messages } = conversationOf(trajectoryOf([first, second]));
    expect(messages.map(({ role, token_ids }) => [role, token_ids])).toEqual([
      ['user', [1, 2]],
      ['assistant', [3, 4]],
      ['user', [5, 6]],
      ['assistant', [7]],
    ]);
    expect(messages[1]).toMatchObject({ input_ids: [1, 2], output_ids: [3, 4], logprobs: [-3, -4] });
    expect(messages[3]).toMatchObject({ input_ids: [1, 2, 3, 4, 5, 6], output_ids: [7], logprobs: [-7] });
  });

  it('gives a reply that the agent rewrote no sampled ids', () => {
    const history = [user('u1'), assistant('shorter'), user('u2')];
    const second = call(history, [1, 2, 9, 5, 6], assistant('a2'), [7]);
    const { messages } = conversationOf(trajectoryOf([first, second]));
    expect(messages[1]).toMatchObject({ token_ids: [], input_ids: null, output_ids: null, logprobs: null });
    expect(messages[2]?.token_ids).toEqual([1, 2, 9, 5, 6]);
  });

  it('joins the text parts of a message, and leaves out its images', () => {
    const url = 'data:image/png;base64,';
    const parts: ChatMessage = {
      role: 'user',
      content: [
        { type: 'text', text: 'what is ' },
        { type: 'image_url', image_url: { url } },
        { type: 'text', text: 'this?' },
      ],
    };
    const { messages } = conversationOf(trajectoryOf([call([parts], [1], assistant('a cat'), [2])]));
    expect(messages.map(({ content }) => content)).toEqual(['what is this?', 'a cat']);
  });

  it('leaves out calls of other threads and auxiliary calls', () => {
    const title = call([user('name this')], [8], assistant('title'), [9], { call_kind: 'title' });
    const helper = call([user('help')], [8], assistant('helped'), [9], { thread: 'helper' });
    const { messages } = conversationOf(trajectoryOf([first, title, helper]));
    expect(messages.map(({ content }) => content)).toEqual(['u1', 'a1']);
  });

  it('is empty for a session without calls', () => {
    expect(conversationOf(trajectoryOf([]))).toEqual({ messages: [], tools: [] });
  });

  it('contains every id of the last call exactly once, in order', () => {
    const id = fc.nat(3);
    const turn = fc.record({
      between: fc.array(id, { minLength: 1 }),
      reply: fc.array(id, { minLength: 1 }),
      kept: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(turn, { minLength: 1, maxLength: 6 }), (turns) => {
        const traces: Trace[] = [];
        let ids: number[] = [];
        let history: ChatMessage[] = [];
        for (const [index, { between, reply, kept }] of turns.entries()) {
          const prompt = [...ids, ...between];
          history = [...history, user(`u${index}`)];
          traces.push(call(history, prompt, assistant(`a${index}`), reply));
          history = [...history, assistant(`a${index}`)];
          ids = kept ? [...prompt, ...reply] : [...prompt, 99];
        }
        const last = traces.at(-1);
        const { messages } = conversationOf(trajectoryOf(traces));
        expect(messages.flatMap(({ token_ids }) => token_ids)).toEqual([
          ...(last?.prompt_ids ?? []),
          ...(last?.response_ids ?? []),
        ]);
      }),
    );
  });
});
