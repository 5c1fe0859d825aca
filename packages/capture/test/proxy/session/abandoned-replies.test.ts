import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { AbandonedReplies } from '../../../src/proxy/session/abandoned-replies.ts';
import type { Completion } from '../../../src/tokens/completion.ts';

const user: ChatMessage = { role: 'user', content: 'hi' };

function reply(...calls: [id: string, name: string, text: string][]): AssistantMessage {
  return {
    role: 'assistant',
    content: null,
    tool_calls: calls.map(([id, name, text]) => ({ id, type: 'function', function: { name, arguments: text } })),
  };
}

function completion(message: AssistantMessage, messages: readonly ChatMessage[] = [user]): Completion {
  return { message, request: { messages }, abandoned: false } as unknown as Completion;
}

/**
 * Records that the requests of all replies in `recorded` were repeated, and then checks a request whose history contains the assistant turn
 * `echo`. Returns for each reply whether it counts as used by the harness.
 */
function broughtBack(echo: AssistantMessage, recorded: Completion[]): boolean[] {
  const replies = new AbandonedReplies();
  for (const doubted of recorded) replies.addRetried(doubted);
  replies.checkRequest([user, echo, { role: 'tool', tool_call_id: 'x', content: '' }], recorded);
  return recorded.map(({ abandoned }) => !abandoned);
}

describe('a returned turn with calls', () => {
  const one = () => completion(reply(['call_0', 'sh', '{"a": 1, "b": 2}']));
  const two = () => completion(reply(['call_0', 'sh', '{"a": 2}']));

  it('is matched by its arguments when the engine gave one id twice', () => {
    expect(broughtBack(reply(['call_0', 'sh', '{"b":2,"a":1}']), [one(), two()])).toEqual([true, false]);
    expect(broughtBack(reply(['call_0', 'sh', '{"a":2}']), [one(), two()])).toEqual([false, true]);
  });

  it('is matched by its name, too', () => {
    const other = completion(reply(['call_0', 'read', '{"a": 2}']));
    expect(broughtBack(reply(['call_0', 'read', '{"a":2}']), [two(), other])).toEqual([false, true]);
  });

  it('is matched by the id alone when the harness changed the arguments and no other reply has it', () => {
    const other = completion(reply(['call_1', 'sh', '{"a": 2}']));
    expect(broughtBack(reply(['call_0', 'sh', '{"repaired":true}']), [one(), other])).toEqual([true, false]);
    expect(broughtBack(reply(['call_0', 'sh', '{"repaired":true}']), [one(), two()])).toEqual([false, false]);
  });

  it('is matched by the id alone when the returned arguments differ, of whatever size', () => {
    const huge = `[${'[],'.repeat(10_000_000)}[]]`;
    expect(broughtBack(reply(['call_0', 'sh', huge]), [one()])).toEqual([true]);
    expect(broughtBack(reply(['call_0', 'sh', huge]), [one(), two()])).toEqual([false, false]);
  });

  it('matches only with all of its calls when ids repeat within one reply', () => {
    const both = completion(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":2}']));
    const half = completion(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":3}']));
    expect(broughtBack(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":2}']), [both, half])).toEqual([true, false]);
  });

  it('matches only at the position of the reply', () => {
    const later = completion(reply(['call_0', 'sh', '{"a": 1, "b": 2}']), [user, user]);
    expect(broughtBack(reply(['call_0', 'sh', '{"a":1,"b":2}']), [later, one()])).toEqual([false, true]);
  });

  it('is compared as text when its arguments are not JSON', () => {
    const broken = completion(reply(['call_0', 'sh', '{"a":']));
    expect(broughtBack(reply(['call_0', 'sh', ' {"a": ']), [broken, two()])).toEqual([true, false]);
  });
});
