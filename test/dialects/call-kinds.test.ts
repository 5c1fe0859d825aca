import { readdirSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type LabelInput, labelCall, threadKeyOf } from '../../src/dialects/call-kinds/label.ts';
import type { Headers } from '../../src/dialects/dialect.ts';
import { matchRoute } from '../../src/dialects/registry.ts';
import { type ChatMessage, type ChatTool, callKindSchema, dialectNameSchema } from '../../src/schema/index.ts';

/** What the programs really sent, cut down to what tells their calls apart. A thread that no header names is a word of ours. */
const callSchema = z.object({
  of: z.string().optional(),
  dialect: dialectNameSchema,
  path: z.string(),
  callKind: callKindSchema,
  thread: z.string(),
  headers: z.record(z.string(), z.string()),
  body: z.record(z.string(), z.unknown()),
});
type CapturedCall = z.output<typeof callSchema>;
const captureSchema = z.object({
  harness: z.string(),
  version: z.string(),
  sessions: z.array(z.object({ name: z.string(), calls: z.array(callSchema).min(1) })).min(1),
});

const DIR = new URL('./captures/', import.meta.url);
const CAPTURES = readdirSync(DIR).map((file) =>
  captureSchema.parse(JSON.parse(readFileSync(new URL(file, DIR), 'utf8'))),
);
const SESSIONS = CAPTURES.flatMap(({ harness, version, sessions }) =>
  sessions.map(({ name, calls }) => ({ name: `${harness} ${version}: ${name}`, calls })),
);

function parsed({ dialect, path, headers, body }: CapturedCall) {
  const url = new URL(path, 'http://localhost');
  const route = matchRoute('POST', url.pathname, headers);
  if (!route.found) throw new Error(`no route for ${path}`);
  expect(route.dialect.name).toBe(dialect);
  const { model, stream } = route;
  return route.dialect.parseRequest(body, { headers, query: url.searchParams, model, stream });
}

describe('what each program really sends is told apart', () => {
  test('by captures of every program', () => {
    expect(CAPTURES.map(({ harness }) => harness).sort()).toEqual(
      ['claude_code', 'codex', 'gemini_cli', 'mini_swe_agent', 'opencode', 'pi', 'qwen_code'].sort(),
    );
  });

  test.each(SESSIONS)('$name', ({ calls }) => {
    const labels = calls.map(parsed);
    expect(labels.map(({ callKind }) => callKind)).toEqual(calls.map(({ callKind }) => callKind));
    // Same word, same thread; other word, other thread.
    const names = new Map<string, string>();
    for (const [index, { thread }] of calls.entries()) names.set(thread, labels[index]?.thread ?? '');
    expect(labels.map(({ thread }) => thread)).toEqual(calls.map(({ thread }) => names.get(thread)));
    expect(new Set(names.values()).size).toBe(names.size);
    expect(names.get('main') ?? 'main').toBe('main');
    const ids = calls.flatMap(({ headers }) => Object.values(headers));
    for (const [word, name] of names) if (ids.includes(word)) expect(name).toBe(word);
  });
});

const chat = (...messages: ChatMessage[]): Partial<LabelInput> => ({ messages });
const system = (content: string): ChatMessage => ({ role: 'system', content });
const user = (content: string): ChatMessage => ({ role: 'user', content });
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content });
const tool = (name: string, parameters?: Record<string, unknown>): ChatTool => ({
  type: 'function',
  function: { name, ...(parameters ? { parameters } : {}) },
});
const json = (...fields: string[]) => ({
  type: 'object',
  properties: Object.fromEntries(fields.map((field) => [field, { type: 'string' }])),
});
const format = (...fields: string[]): Partial<LabelInput> => ({
  responseFormat: { type: 'json_schema', json_schema: { name: 'response', schema: json(...fields) } },
});

const label = (headers: Headers, more: Partial<LabelInput> = {}) =>
  labelCall({ headers, messages: [user('do it')], tools: [], responseFormat: undefined, ...more });
const codexHeaders = (metadata: object, more: Headers = {}): Headers => ({
  'session-id': 's',
  'thread-id': 's',
  'x-codex-turn-metadata': JSON.stringify(metadata),
  ...more,
});
const MAIN = { thread: 'main', callKind: 'main' };

describe('headers', () => {
  test.each<[string, Headers, string, string]>([
    ['nothing is told', {}, 'main', 'main'],
    ['Claude Code names a sub-agent', { 'x-claude-code-agent-id': 'a5' }, 'a5', 'subagent'],
    ['opencode names a parent', { 'x-parent-session-id': 'p', 'x-session-id': 'c' }, 'c', 'subagent'],
    ['opencode names no parent', { 'x-session-id': 'c' }, 'main', 'main'],
    ['Copilot CLI says that it is the user who asks', { 'x-interaction-type': 'conversation-user' }, 'main', 'main'],
    ['Codex takes a turn', codexHeaders({ request_kind: 'turn', thread_source: 'user' }), 'main', 'main'],
    ['Codex compacts', codexHeaders({ request_kind: 'compaction', thread_source: 'user' }), 'main', 'compaction'],
    ['Codex warms up', codexHeaders({ request_kind: 'prewarm', thread_source: 'user' }), 'main', 'probe'],
    ['Codex does what is not known', codexHeaders({ request_kind: 'toString' }), 'main', 'main'],
    [
      "a sub-agent of Codex's takes a turn",
      codexHeaders({ request_kind: 'turn', thread_source: 'subagent' }, { 'thread-id': 't' }),
      't',
      'subagent',
    ],
    [
      "a sub-agent of Codex's compacts",
      codexHeaders({ request_kind: 'compaction', thread_source: 'subagent' }, { 'thread-id': 't' }),
      't',
      'compaction',
    ],
    ['Codex reviews, without metadata', { 'x-openai-subagent': 'review', 'thread-id': 't' }, 't', 'subagent'],
    ['Codex compacts in a sub-agent', { 'x-openai-subagent': 'compact', 'thread-id': 't' }, 't', 'compaction'],
    ['Codex remembers', { 'x-openai-subagent': 'memory_consolidation', 'thread-id': 't' }, 't', 'memory'],
    ['Codex names a parent only', { 'x-codex-parent-thread-id': 'p', 'thread-id': 't' }, 't', 'subagent'],
    ['Codex names the thread in its metadata only', codexless('t'), 't', 'subagent'],
  ])('tell the label: %s', (_, headers, thread, callKind) => {
    expect(label(headers)).toEqual({ thread, callKind });
  });

  test('of a sub-agent without an id leave it to the prompt which one it is', () => {
    for (const headers of [
      { 'x-interaction-type': 'conversation-subagent' },
      { 'x-parent-session-id': 'p' },
      { 'x-openai-subagent': 'review' },
    ]) {
      const one = label(headers, chat(system('s'), user('task one')));
      const later = label(headers, chat(system('s'), user('task one'), assistant('yes'), user('on')));
      const two = label(headers, chat(system('s'), user('task two')));
      const other = label(headers, chat(system('t'), user('task one')));
      expect(one).toMatchObject({ callKind: 'subagent' });
      expect(later).toEqual(one);
      expect(new Set([one.thread, two.thread, other.thread, 'main']).size).toBe(4);
    }
  });

  test('that make no sense are those of the main agent', () => {
    const huge = JSON.stringify({ request_kind: 'compaction', more: 'x'.repeat(20_000) });
    for (const text of ['{', 'null', '{"request_kind":1}', '[]', '{"thread_source":{}}', huge]) {
      expect(label({ 'x-codex-turn-metadata': text })).toEqual(MAIN);
    }
  });

  test('cannot put a sub-agent into the main thread, nor give it a name that is long or odd', () => {
    const long = 'a'.repeat(500);
    const names = ['main', long, `${long}b`, 'ä', ' ', '\u0000'].map(
      (id) => label({ 'x-claude-code-agent-id': id }).thread,
    );
    for (const name of names) expect(name).toMatch(/^subagent-[0-9a-f]{16}$/);
    expect(new Set(names).size).toBe(names.length);
  });

  const TOLD = [
    'x-claude-code-agent-id',
    'x-claude-code-session-id',
    'x-session-id',
    'x-parent-session-id',
    'x-interaction-type',
    'x-openai-subagent',
    'x-openai-memgen-request',
    'x-codex-parent-thread-id',
    'thread-id',
    'session-id',
  ];
  const value = fc.oneof(fc.string(), fc.constantFrom('main', 'true', 'a', 'b', 'review', 'compact', 'a'.repeat(300)));
  const metadata = fc
    .record(
      {
        request_kind: fc.oneof(fc.constantFrom('turn', 'compaction', 'prewarm', '__proto__'), fc.jsonValue()),
        thread_source: fc.oneof(fc.constantFrom('user', 'subagent'), fc.jsonValue()),
        thread_id: fc.oneof(value, fc.jsonValue()),
      },
      { requiredKeys: [] },
    )
    .map((data) => JSON.stringify(data));
  const headers: fc.Arbitrary<Headers> = fc
    .tuple(
      fc.dictionary(fc.constantFrom(...TOLD), fc.oneof(value, fc.array(value, { maxLength: 2 }))),
      fc.option(fc.oneof(metadata, fc.string()), { nil: undefined }),
    )
    .map(([told, codex]) => ({ ...told, ...(codex === undefined ? {} : { 'x-codex-turn-metadata': codex }) }));

  test('of any kind never throw, and name threads within the limit; only a sub-agent leaves the main thread', () => {
    fc.assert(
      fc.property(headers, (given) => {
        const { thread, callKind } = label(given);
        expect(thread).toMatch(/^[\x21-\x7e]{1,128}$/);
        if (callKind === 'main') expect(thread).toBe('main');
        if (callKind === 'subagent') expect(thread).not.toBe('main');
        expect(threadKeyOf(given).length).toBeLessThan(20_000);
      }),
      { numRuns: 500 },
    );
  });

  test('with one key give one body one label', () => {
    fc.assert(
      fc.property(headers, headers, (a, b) => {
        if (threadKeyOf(a) === threadKeyOf(b)) expect(label(a)).toEqual(label(b));
        // What tells nothing changes no key.
        expect(threadKeyOf({ ...a, 'x-request-id': 'r', 'user-agent': 'u' })).toBe(threadKeyOf(a));
      }),
      { numRuns: 500 },
    );
  });

  test('that tell of different threads, purposes or runs have different keys', () => {
    const keys = [
      {},
      { 'x-claude-code-agent-id': 'a' },
      { 'x-claude-code-agent-id': 'b' },
      { 'x-claude-code-session-id': 'a' },
      { 'x-session-id': 'a' },
      { 'x-session-id': 'a', 'x-parent-session-id': 'p' },
      { 'x-interaction-type': 'conversation-subagent' },
      codexHeaders({ request_kind: 'turn', thread_source: 'user' }),
      codexHeaders({ request_kind: 'prewarm', thread_source: 'user' }),
      codexHeaders({ request_kind: 'turn', thread_source: 'subagent' }, { 'thread-id': 't' }),
    ].map(threadKeyOf);
    expect(new Set(keys).size).toBe(keys.length);
  });
});

function codexless(id: string): Headers {
  return { 'x-codex-turn-metadata': JSON.stringify({ thread_source: 'subagent', thread_id: id }) };
}

const CLAUDE_SUMMARY =
  'Text only.\n\nYour task is to create a detailed summary of the conversation so far, …\n<summary>\n</summary>';
const CODEX_SUMMARY = 'You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.';
const GEMINI_SUBAGENT = 'Call `complete_task`. * This is the ONLY way to complete your mission.';
const GEMINI_SNAPSHOT =
  '\nYou are a specialized system component responsible for distilling chat history into a <state_snapshot>.';
const QWEN_SUBAGENT = ' - When done, return the final result as a normal model response (not a tool call) and stop.';
const QWEN_SUMMARY =
  'You are the component that summarizes a conversation when its context window is about to overflow.';
const QWEN_DIRECTIVE = 'First, reason. Then, produce the <state_snapshot> XML.';
const QWEN_MEMORY = 'You are now acting as the managed memory extraction subagent for an assistant.';
const PI_SUMMARY = 'You are a context summarization assistant. Your task is to read a conversation.';
const OPENCODE_SUMMARY = 'You are a context summarization agent. You are given a conversation.';
const OPENCODE_TITLE = 'You are a title generator. You output ONLY a thread title. Nothing else.';

describe('a prompt', () => {
  test.each<[string, Partial<LabelInput>, string]>([
    ['of Claude Code that asks for a summary', chat(user(CLAUDE_SUMMARY)), 'compaction'],
    ['of Claude Code in an older form', chat(user(CLAUDE_SUMMARY.slice(12))), 'compaction'],
    ['of Codex without its headers', chat(user('a'), assistant('b'), user(CODEX_SUMMARY)), 'compaction'],
    ['of pi that asks for a summary', chat(system(PI_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode that asks for a summary', chat(system(OPENCODE_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode that asks for a title', chat(system(OPENCODE_TITLE), user('a')), 'title'],
    ['of Gemini CLI that asks for a snapshot', chat(system(GEMINI_SNAPSHOT), user('go')), 'compaction'],
    ['of Qwen Code that asks for a snapshot', chat(system(QWEN_SUMMARY), user(QWEN_DIRECTIVE)), 'compaction'],
    [
      "of Qwen Code that asks for one behind the agent's own prompt",
      {
        ...chat(system('You are Qwen Code.'), user('a'), user(`\n${QWEN_SUMMARY}\n${QWEN_DIRECTIVE}`)),
        tools: [tool('edit')],
      },
      'compaction',
    ],
    ['for a title in JSON', format('title'), 'title'],
    ['for a title by the one tool that Qwen Code has for it', jsonTool('title'), 'title'],
    ['for the next speaker', format('reasoning', 'next_speaker'), 'routing'],
    ['for the next speaker by a tool', jsonTool('reasoning', 'next_speaker'), 'routing'],
    ['for a model', format('reasoning', 'model_choice'), 'routing'],
    ['for a score of the task', format('complexity_reasoning', 'complexity_score'), 'routing'],
    ['for a loop', format('unproductive_state_analysis', 'unproductive_state_confidence'), 'routing'],
  ])('%s tells what it is for', (_, more, callKind) => {
    expect(label({}, more)).toEqual({ thread: 'main', callKind });
  });

  test.each<[string, Partial<LabelInput>]>([
    ['that quotes the words of Claude Code in a task', chat(user(`Explain "${CLAUDE_SUMMARY.slice(12)}"`))],
    ['that has the words without the form of the answer', chat(user(CLAUDE_SUMMARY.split('<')[0] ?? ''))],
    ['whose summary was asked for before', chat(user(CLAUDE_SUMMARY), assistant('a'), user('go on'))],
    [
      'whose tool result has the words',
      chat(user('a'), assistant('b'), { role: 'tool', tool_call_id: 'c', content: CLAUDE_SUMMARY }),
    ],
    ['whose reply has the words', chat(user('a'), assistant(CLAUDE_SUMMARY))],
    ['that has the words of Codex and tools', { ...chat(user(CODEX_SUMMARY)), tools: [tool('exec_command')] }],
    ['that has the words of Codex further down', chat(user(`What does this do? ${CODEX_SUMMARY}`))],
    ['that begins as that of pi and has tools', { ...chat(system(PI_SUMMARY), user('a')), tools: [tool('read')] }],
    ['that begins as that of pi and goes on', chat(system(PI_SUMMARY), user('a'), assistant('b'), user('c'))],
    ['that quotes what pi says', chat(system(`Never say: ${PI_SUMMARY}`), user('a'))],
    ['whose user says what pi says', chat(system('s'), user(PI_SUMMARY))],
    ['that quotes what opencode says', chat(system(`Never say: ${OPENCODE_SUMMARY}`), user('a'))],
    ['that asks opencode for a title, with tools', { ...chat(system(OPENCODE_TITLE)), tools: [tool('bash')] }],
    ['whose user asks for a title', chat(user(OPENCODE_TITLE))],
    ['that asks for a title as a part of more', format('title', 'body')],
    ['that asks for a title after a reply', { ...chat(user('a'), assistant('b'), user('c')), ...format('title') }],
    ['that asks for a title and has tools', { ...format('title'), tools: [tool('read')] }],
    ['that asks for JSON of any form', { responseFormat: { type: 'json_object' } }],
    ['that asks for a reason alone', format('reasoning')],
    ['that asks for a speaker and more', format('reasoning', 'next_speaker', 'answer')],
    ['whose only tool has a title', { tools: [tool('publish', json('title'))] }],
    ['that has the JSON tool among others', { tools: [tool('respond_in_schema', json('title')), tool('read')] }],
    ['that distils, with tools', { ...chat(system(GEMINI_SNAPSHOT), user('a')), tools: [tool('glob')] }],
    ['that distils into something else', chat(system(GEMINI_SNAPSHOT.split('<')[0] ?? ''), user('a'))],
    ['whose tool completes a task', { ...chat(system('Finish.'), user('a')), tools: [tool('complete_task')] }],
    ['whose mission has one way only', { ...chat(system(GEMINI_SUBAGENT)), tools: [tool('glob')] }],
    ['whose user has a mission', { ...chat(system('s'), user(GEMINI_SUBAGENT)), tools: [tool('complete_task')] }],
    ['whose user speaks as to a sub-agent of Qwen Code', chat(system('s'), user(QWEN_SUBAGENT))],
    ['whose user quotes the prompt of a summary', chat(user(`Improve this: ${QWEN_SUMMARY} ${QWEN_DIRECTIVE}`))],
    ['that summarises into something else', chat(system(QWEN_SUMMARY), user('Write a poem.'))],
    ['that mentions memory', chat(system(`You are not that agent: ${QWEN_MEMORY}`), user('a'))],
    ['whose user speaks of memory', chat(system('s'), user(QWEN_MEMORY))],
  ])('%s is a turn of the main agent', (_, more) => {
    expect(label({}, more)).toEqual(MAIN);
  });

  test('of a sub-agent tells which one it is, and that it compacts', () => {
    const gemini = { tools: [tool('complete_task')] };
    const agents = [
      label({}, { ...gemini, ...chat(system(GEMINI_SUBAGENT), user('one')) }),
      label({}, { ...gemini, ...chat(system(GEMINI_SUBAGENT), user('two')) }),
      label({}, chat(system(QWEN_SUBAGENT), user('one'))),
      label({}, chat(system(QWEN_SUBAGENT), user('two'))),
    ];
    expect(agents.map(({ callKind }) => callKind)).toEqual(agents.map(() => 'subagent'));
    expect(new Set([...agents.map(({ thread }) => thread), 'main']).size).toBe(5);
    const asked = chat(system(QWEN_SUBAGENT), user('one'), user(`${QWEN_SUMMARY}\n${QWEN_DIRECTIVE}`));
    const compacting = label({}, { ...asked, tools: [tool('edit')] });
    expect(compacting).toEqual({ thread: agents[2]?.thread, callKind: 'compaction' });
    const claude = label({ 'x-claude-code-agent-id': 'a5' }, chat(user(CLAUDE_SUMMARY)));
    expect(claude).toEqual({ thread: 'a5', callKind: 'compaction' });
  });

  test('of an agent that remembers has a thread of its own', () => {
    const { thread, callKind } = label({}, chat(system(QWEN_MEMORY), user('a')));
    expect(callKind).toBe('memory');
    expect(thread).not.toBe('main');
  });

  test('counts less than what the headers say', () => {
    const turn = codexHeaders({ request_kind: 'turn', thread_source: 'user' });
    expect(label(turn, { ...chat(system(GEMINI_SUBAGENT)), tools: [tool('complete_task')] })).toEqual(MAIN);
    const compaction = codexHeaders({ request_kind: 'compaction', thread_source: 'user' });
    expect(label(compaction, format('title')).callKind).toBe('compaction');
  });
});

function jsonTool(...fields: string[]): Partial<LabelInput> {
  return { tools: [tool('respond_in_schema', json(...fields))] };
}
