import { describe, expect, test } from 'vitest';
import { AbandonedReplies } from '../../../src/proxy/session/abandoned-replies.ts';
import type { AssistantMessage, ChatMessage } from '../../../src/schema/index.ts';
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

/** Which of the recorded replies a request with this echo brings back, when all of them were doubted. */
function broughtBack(echo: AssistantMessage, recorded: Completion[]): boolean[] {
  const replies = new AbandonedReplies();
  for (const doubted of recorded) replies.addRepeated(doubted);
  replies.checkRequest([user, echo, { role: 'tool', tool_call_id: 'x', content: '' }], recorded);
  return recorded.map(({ abandoned }) => !abandoned);
}

describe('an echoed turn with calls', () => {
  const one = () => completion(reply(['call_0', 'sh', '{"a": 1, "b": 2}']));
  const two = () => completion(reply(['call_0', 'sh', '{"a": 2}']));

  test('is told by its arguments where the engine gave one id twice', () => {
    expect(broughtBack(reply(['call_0', 'sh', '{"b":2,"a":1}']), [one(), two()])).toEqual([true, false]);
    expect(broughtBack(reply(['call_0', 'sh', '{"a":2}']), [one(), two()])).toEqual([false, true]);
  });

  test('is told by its name, too', () => {
    const other = completion(reply(['call_0', 'read', '{"a": 2}']));
    expect(broughtBack(reply(['call_0', 'read', '{"a":2}']), [two(), other])).toEqual([false, true]);
  });

  test('is told by the id alone when the harness changed the arguments and no other reply has it', () => {
    const other = completion(reply(['call_1', 'sh', '{"a": 2}']));
    expect(broughtBack(reply(['call_0', 'sh', '{"repaired":true}']), [one(), other])).toEqual([true, false]);
    expect(broughtBack(reply(['call_0', 'sh', '{"repaired":true}']), [one(), two()])).toEqual([false, false]);
  });

  test('is told by the id alone where what came back cannot be the same arguments, of whatever size', () => {
    const huge = `[${'[],'.repeat(10_000_000)}[]]`;
    expect(broughtBack(reply(['call_0', 'sh', huge]), [one()])).toEqual([true]);
    expect(broughtBack(reply(['call_0', 'sh', huge]), [one(), two()])).toEqual([false, false]);
  });

  test('with the same ids within one reply needs all of its calls', () => {
    const both = completion(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":2}']));
    const half = completion(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":3}']));
    expect(broughtBack(reply(['c', 'sh', '{"a":1}'], ['c', 'sh', '{"a":2}']), [both, half])).toEqual([true, false]);
  });

  test('counts only in the place of the reply', () => {
    const later = completion(reply(['call_0', 'sh', '{"a": 1, "b": 2}']), [user, user]);
    expect(broughtBack(reply(['call_0', 'sh', '{"a":1,"b":2}']), [later, one()])).toEqual([false, true]);
  });

  test('whose arguments are no JSON is compared as text', () => {
    const broken = completion(reply(['call_0', 'sh', '{"a":']));
    expect(broughtBack(reply(['call_0', 'sh', ' {"a": ']), [broken, two()])).toEqual([true, false]);
  });
});
