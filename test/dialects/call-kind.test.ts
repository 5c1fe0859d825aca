import { describe, expect, test } from 'vitest';
import { type CallShape, labelCall, threadKeyOf } from '../../src/dialects/call-kind.ts';
import type { Headers } from '../../src/dialects/dialect.ts';
import type { ChatMessage } from '../../src/schema/index.ts';

const label = (headers: Headers, more: Partial<CallShape> = {}) =>
  labelCall({ headers, messages: [{ role: 'user', content: 'x' }], tools: [], responseFormat: undefined, ...more });

/** As Codex 0.169.0 sends it, shortened. */
function codex(metadata: object, more: Headers = {}): Headers {
  return { 'session-id': 's', 'thread-id': 's', 'x-codex-turn-metadata': JSON.stringify(metadata), ...more };
}

describe('the label of a call', () => {
  test.each<[string, Headers, string, string]>([
    ['nothing is told', {}, 'main', 'main'],
    ['Claude Code names a sub-agent', { 'x-claude-code-agent-id': 'a5' }, 'a5', 'subagent'],
    ['opencode names a parent', { 'x-parent-session-id': 'p', 'x-session-id': 'c' }, 'c', 'subagent'],
    ['Copilot CLI says so', { 'x-interaction-type': 'conversation-subagent' }, 'subagent', 'subagent'],
    ['Codex takes a turn', codex({ request_kind: 'turn', thread_source: 'user' }), 'main', 'main'],
    ['Codex compacts', codex({ request_kind: 'compaction', thread_source: 'user' }), 'main', 'compaction'],
    [
      "a sub-agent of Codex's takes a turn",
      codex(
        { request_kind: 'turn', thread_source: 'subagent' },
        { 'thread-id': 't', 'x-openai-subagent': 'collab_spawn' },
      ),
      't',
      'subagent',
    ],
    [
      "a sub-agent of Codex's compacts",
      codex({ request_kind: 'compaction', thread_source: 'subagent' }, { 'thread-id': 't' }),
      't',
      'compaction',
    ],
  ])('is told from headers: %s', (_, headers, thread, callKind) => {
    expect(label(headers)).toEqual({ thread, callKind });
  });

  test('is main when the metadata of a header make no sense', () => {
    const huge = JSON.stringify({ request_kind: 'compaction', more: 'x'.repeat(20_000) });
    for (const text of ['{', 'null', '{"request_kind":1}', '[]', huge]) {
      expect(label({ 'x-codex-turn-metadata': text })).toEqual({ thread: 'main', callKind: 'main' });
    }
  });

  test('is a compaction where the last message asks for a summary in the words of Claude Code', () => {
    const words =
      'CRITICAL: text only.\n\nYour task is to create a detailed summary of the conversation so far, paying …';
    const asked: ChatMessage = {
      role: 'user',
      content: [
        { type: 'text', text: '0' },
        { type: 'text', text: words },
      ],
    };
    expect(label({}, { messages: [asked] })).toEqual({ thread: 'main', callKind: 'compaction' });
    expect(label({ 'x-claude-code-agent-id': 'a5' }, { messages: [{ role: 'user', content: words }] })).toEqual({
      thread: 'a5',
      callKind: 'compaction',
    });
    const answered: ChatMessage[] = [asked, { role: 'assistant', content: words }];
    expect(label({}, { messages: answered }).callKind).toBe('main');
  });

  test('is a title call where a JSON object with a title is asked for, and no tools are there', () => {
    const schema = { type: 'object', properties: { title: { type: 'string' } } };
    const responseFormat = { type: 'json_schema' as const, json_schema: { name: 'title', schema } };
    expect(label({}, { responseFormat }).callKind).toBe('title');
    const tools = [{ type: 'function' as const, function: { name: 'f' } }];
    expect(label({}, { responseFormat, tools }).callKind).toBe('main');
  });
});

test('equal requests of different threads are told apart', () => {
  const keys = [{}, { 'x-claude-code-agent-id': 'a' }, { 'x-session-id': 'a' }, { 'thread-id': 'a' }].map(threadKeyOf);
  expect(new Set(keys).size).toBe(4);
});
