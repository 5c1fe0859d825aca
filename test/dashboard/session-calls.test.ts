import type { ChatMessage, CompletionRecord, Trace, Trajectory } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { visible } from '../../dashboard/src/format.ts';
import { callsOf } from '../../dashboard/src/views/session/calls.ts';

const user = (content: string): ChatMessage => ({ role: 'user', content });
const said = (content: string) => ({ role: 'assistant' as const, content });

type Fields = {
  readonly id: string;
  readonly index: number;
  readonly base?: string;
  readonly keep?: number;
  readonly messages: readonly ChatMessage[];
  readonly ids: readonly number[];
  readonly more?: Partial<CompletionRecord>;
};

function record({ id, index, base, keep = 0, messages, ids, more = {} }: Fields): CompletionRecord {
  return {
    completion_id: id,
    index,
    call_kind: 'main',
    thread: 'main',
    request: { base: base ?? null, keep, messages, tools: null },
    prompt: { base: base ?? null, keep: 3 * index, ids: [7, 8] },
    response_ids: ids,
    message: said(`reply ${index}`),
    finish_reason: 'stop',
    auxiliary: false,
    abandoned: false,
    undelivered: false,
    ...more,
  } as unknown as CompletionRecord;
}

const FIRST = record({ id: 'a', index: 0, messages: [user('one')], ids: [1, 2] });
const SECOND = record({
  id: 'b',
  index: 1,
  base: 'a',
  keep: 1,
  messages: [said('reply 0'), user('two')],
  ids: [3, 4, 5],
});

const trajectory = (trace: Partial<Trace>): Trajectory =>
  ({ traces: [{ trace_id: 't', reward: 1, completion_ids: [], ...trace }] }) as unknown as Trajectory;

describe('the calls of a session', () => {
  it('have the whole request, and how much of it the call before had', () => {
    const calls = callsOf([SECOND, FIRST], null);
    expect(calls.map(({ messages }) => messages)).toEqual([[user('one')], [user('one'), said('reply 0'), user('two')]]);
    expect(calls.map(({ known }) => known)).toEqual([0, 2]);
    expect(calls.map(({ promptLength, keptIds }) => [promptLength, keptIds])).toEqual([
      [2, 0],
      [5, 3],
    ]);
  });

  it('find the mask of their reply in the trace, also when a tool has repeated it before', () => {
    const mask = [1, 1, 0, 0, 0, 1, 0, 1];
    const trace = { response_ids: [1, 2, 3, 4, 5, 3, 4, 5], loss_mask: mask, completion_ids: ['a', 'b'] };
    const [first, second] = callsOf([FIRST, SECOND], trajectory(trace));
    expect(first?.training).toEqual({ trace: 't', reward: 1, mask: [1, 1] });
    expect(second?.training).toEqual({ trace: 't', reward: 1, mask: [1, 0, 1] });
  });

  it.each([
    [{ call_kind: 'untrained' }, 'the agent excluded it'],
    [{ auxiliary: true, call_kind: 'title' }, 'it is an auxiliary call (title)'],
    [{ abandoned: true }, 'the agent abandoned the reply'],
    [{ undelivered: true }, 'the reply did not reach the agent'],
    [{ finish_reason: 'abort' }, 'the engine broke the reply off'],
    [{}, 'no trace contains it'],
  ] as const)('state why a reply with %o is not trained', (more, why) => {
    const [call] = callsOf([{ ...FIRST, ...more } as CompletionRecord], trajectory({}));
    expect(call?.training).toEqual({ trace: null, why });
  });
});

describe('texts of agents', () => {
  it('show control characters and changes of direction as symbols, and keep lines', () => {
    expect(visible('a\u001b[31m\u0000\u202eb\r\nc\td\u007f')).toBe('a\u241b[31m\u2400\\u202eb\nc\td\u2421');
  });
});
