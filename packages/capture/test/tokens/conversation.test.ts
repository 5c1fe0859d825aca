import { describe, expect, it } from 'vitest';
import { conversationOf, responseMessages, responseTexts } from '../../src/tokens/conversation.ts';
import { buildGraph } from '../../src/tokens/graph.ts';
import type { CompletionInput } from './session.ts';
import { Transcript } from './transcript.ts';

/** Returns a session of two turns and the conversation of its main agent, after which `later` calls are made. */
function sessionWith(...later: Partial<CompletionInput>[]) {
  const t = new Transcript();
  const h0 = t.start();
  const h1 = t.after(h0, t.call(h0));
  const last = t.call(h1);
  for (const input of later) t.call(t.start(), input);
  return { completions: t.completions, expected: [...h1.messages, last.message] };
}

describe('the conversation of a session', () => {
  it('has the messages of the last model call and its reply', () => {
    const { completions, expected } = sessionWith();
    expect(conversationOf(completions)).toEqual(expected);
    expect(conversationOf(completions.toReversed())).toEqual(expected);
  });

  it.each<[string, Partial<CompletionInput>]>([
    ['of a sub-agent', { callKind: 'subagent' }],
    ['for a title', { callKind: 'title', auxiliary: true }],
    ['for a summary', { callKind: 'compaction' }],
    ['that is marked as auxiliary', { auxiliary: true }],
    ['whose reply the harness did not use', { abandoned: true }],
    ['whose reply never reached the harness', { undelivered: true }],
  ])('ignores a later call %s', (_, input) => {
    const { completions, expected } = sessionWith(input);
    expect(conversationOf(completions)).toEqual(expected);
  });

  it('is empty without a reply that the agent used', () => {
    const t = new Transcript();
    t.call(t.start(), { undelivered: true });
    expect(conversationOf(t.completions)).toEqual([]);
  });
});

describe('the response messages of a trace', () => {
  it('are each reply as it was sampled and what the next request added, equal to their JSON texts', () => {
    const t = new Transcript();
    const h0 = t.start();
    const c0 = t.call(h0);
    const returned = { role: 'assistant', content: 'another text' } as const;
    const h1 = t.after(h0, c0, undefined, 'tool', [returned]);
    const c1 = t.call(h1);
    const { nodes } = buildGraph(t.completions);
    const messages = responseMessages(nodes);
    expect(messages).toEqual([c0.message, h1.messages.at(-1), c1.message]);
    expect(responseTexts(nodes).map((text) => JSON.parse(text))).toEqual(messages);
    expect(responseMessages([])).toEqual([]);
  });
});
