import { readdirSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { labelCall, threadKeyOf } from '../../../src/dialects/call-kinds/label.ts';
import type { Headers } from '../../../src/dialects/dialect.ts';
import { matchRoute } from '../../../src/dialects/registry.ts';
import { type ChatMessage, type ChatTool, callKindSchema, dialectNameSchema } from '../../../src/schema/index.ts';

/**
 * Schema of a captured call, one that a harness really sent, shortened to the parts that decide its label. Where no header names the
 * thread, the name in the capture was chosen by hand.
 */
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
type LabelInput = Parameters<typeof labelCall>[0];
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

describe('captured calls of every harness', () => {
  it('include every harness', () => {
    expect(CAPTURES.map(({ harness }) => harness).sort()).toEqual(
      ['claude_code', 'codex', 'gemini_cli', 'mini_swe_agent', 'opencode', 'pi', 'qwen_code'].sort(),
    );
  });

  it.each(SESSIONS)('are labelled correctly: $name', ({ calls }) => {
    const labels = calls.map(parsed);
    expect(labels.map(({ callKind }) => callKind)).toEqual(calls.map(({ callKind }) => callKind));
    // Two calls must have equal threads if and only if the capture gives their threads equal names.
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

describe('labels from headers', () => {
  it.each<[string, Headers, string, string]>([
    ['they state nothing', {}, 'main', 'main'],
    ['Claude Code names a sub-agent', { 'x-claude-code-agent-id': 'a5' }, 'a5', 'subagent'],
    ['opencode names a parent session', { 'x-parent-session-id': 'p', 'x-session-id': 'c' }, 'c', 'subagent'],
    ['opencode names no parent session', { 'x-session-id': 'c' }, 'main', 'main'],
    ['Copilot CLI marks a call of the user', { 'x-interaction-type': 'conversation-user' }, 'main', 'main'],
    ['Codex works on a turn', codexHeaders({ request_kind: 'turn', thread_source: 'user' }), 'main', 'main'],
    ['Codex compacts', codexHeaders({ request_kind: 'compaction', thread_source: 'user' }), 'main', 'compaction'],
    ['Codex prewarms', codexHeaders({ request_kind: 'prewarm', thread_source: 'user' }), 'main', 'probe'],
    ['Codex names an unknown kind', codexHeaders({ request_kind: 'toString' }), 'main', 'main'],
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
    ['Codex reviews and sends no metadata', { 'x-openai-subagent': 'review', 'thread-id': 't' }, 't', 'subagent'],
    ['Codex compacts in a sub-agent', { 'x-openai-subagent': 'compact', 'thread-id': 't' }, 't', 'compaction'],
    ['Codex consolidates memories', { 'x-openai-subagent': 'memory_consolidation', 'thread-id': 't' }, 't', 'memory'],
    ['Codex names only a parent thread', { 'x-codex-parent-thread-id': 'p', 'thread-id': 't' }, 't', 'subagent'],
    ['Codex names the thread only in its metadata', codexless('t'), 't', 'subagent'],
  ])('are correct when %s', (_, headers, thread, callKind) => {
    expect(label(headers)).toEqual({ thread, callKind });
  });

  it('name the thread of a sub-agent without an id after its prompt', () => {
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

  it('state the main agent when the headers are invalid', () => {
    const huge = JSON.stringify({ request_kind: 'compaction', more: 'x'.repeat(20_000) });
    for (const text of ['{', 'null', '{"request_kind":1}', '[]', '{"thread_source":{}}', huge]) {
      expect(label({ 'x-codex-turn-metadata': text })).toEqual(MAIN);
    }
  });

  it('neither put a sub-agent into the main thread nor contain an unusable name', () => {
    const long = 'a'.repeat(500);
    const names = ['main', long, `${long}b`, 'ä', ' ', '\u0000'].map(
      (id) => label({ 'x-claude-code-agent-id': id }).thread,
    );
    for (const name of names) expect(name).toMatch(/^subagent-[0-9a-f]{16}$/);
    expect(new Set(names).size).toBe(names.length);
  });

  const HEADER_NAMES = [
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
      fc.dictionary(fc.constantFrom(...HEADER_NAMES), fc.oneof(value, fc.array(value, { maxLength: 2 }))),
      fc.option(fc.oneof(metadata, fc.string()), { nil: undefined }),
    )
    .map(([named, codex]) => ({ ...named, ...(codex === undefined ? {} : { 'x-codex-turn-metadata': codex }) }));

  it('exist for any headers, have a bounded thread name, and leave the main thread only for a sub-agent', () => {
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

  it('are equal for equal keys and equal bodies', () => {
    fc.assert(
      fc.property(headers, headers, (a, b) => {
        if (threadKeyOf(a) === threadKeyOf(b)) expect(label(a)).toEqual(label(b));
        // Headers that state nothing about thread, purpose or run do not change the key.
        expect(threadKeyOf({ ...a, 'x-request-id': 'r', 'user-agent': 'u' })).toBe(threadKeyOf(a));
      }),
      { numRuns: 500 },
    );
  });

  it('have different keys for different threads, purposes or runs', () => {
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

describe('labels from a prompt', () => {
  it.each<[string, Partial<LabelInput>, string]>([
    ['of Claude Code for a summary', chat(user(CLAUDE_SUMMARY)), 'compaction'],
    ['of Claude Code for a summary in an older form', chat(user(CLAUDE_SUMMARY.slice(12))), 'compaction'],
    ['of Codex for a summary without headers', chat(user('a'), assistant('b'), user(CODEX_SUMMARY)), 'compaction'],
    ['of pi for a summary', chat(system(PI_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode for a summary', chat(system(OPENCODE_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode for a title', chat(system(OPENCODE_TITLE), user('a')), 'title'],
    ['of Gemini CLI for a snapshot', chat(system(GEMINI_SNAPSHOT), user('go')), 'compaction'],
    ['of Qwen Code for a snapshot', chat(system(QWEN_SUMMARY), user(QWEN_DIRECTIVE)), 'compaction'],
    [
      "of Qwen Code that asks for one behind the agent's own prompt",
      {
        ...chat(system('You are Qwen Code.'), user('a'), user(`\n${QWEN_SUMMARY}\n${QWEN_DIRECTIVE}`)),
        tools: [tool('edit')],
      },
      'compaction',
    ],
    ['for a title in JSON', format('title'), 'title'],
    ["for a title by Qwen Code's JSON tool", jsonTool('title'), 'title'],
    ['for the next speaker', format('reasoning', 'next_speaker'), 'routing'],
    ['for the next speaker by the JSON tool', jsonTool('reasoning', 'next_speaker'), 'routing'],
    ['for a model', format('reasoning', 'model_choice'), 'routing'],
    ['for a score of the task', format('complexity_reasoning', 'complexity_score'), 'routing'],
    ['for a loop check', format('unproductive_state_analysis', 'unproductive_state_confidence'), 'routing'],
  ])('are correct for a request %s', (_, more, callKind) => {
    expect(label({}, more)).toEqual({ thread: 'main', callKind });
  });

  it.each<[string, Partial<LabelInput>]>([
    ["that quotes Claude Code's summary prompt in a task", chat(user(`Explain "${CLAUDE_SUMMARY.slice(12)}"`))],
    ['with that prompt but without the summary tag', chat(user(CLAUDE_SUMMARY.split('<')[0] ?? ''))],
    ['after a summary', chat(user(CLAUDE_SUMMARY), assistant('a'), user('go on'))],
    [
      'whose tool result contains that prompt',
      chat(user('a'), assistant('b'), { role: 'tool', tool_call_id: 'c', content: CLAUDE_SUMMARY }),
    ],
    ['whose reply contains that prompt', chat(user('a'), assistant(CLAUDE_SUMMARY))],
    ["with Codex's summary prompt and tools", { ...chat(user(CODEX_SUMMARY)), tools: [tool('exec_command')] }],
    ["that contains Codex's summary prompt in a longer text", chat(user(`What does this do? ${CODEX_SUMMARY}`))],
    ["with pi's summary prompt and tools", { ...chat(system(PI_SUMMARY), user('a')), tools: [tool('read')] }],
    ["with pi's summary prompt and a reply", chat(system(PI_SUMMARY), user('a'), assistant('b'), user('c'))],
    ["that quotes pi's summary prompt", chat(system(`Never say: ${PI_SUMMARY}`), user('a'))],
    ["with pi's summary prompt in a user message", chat(system('s'), user(PI_SUMMARY))],
    ["that quotes opencode's summary prompt", chat(system(`Never say: ${OPENCODE_SUMMARY}`), user('a'))],
    ["with opencode's title prompt and tools", { ...chat(system(OPENCODE_TITLE)), tools: [tool('bash')] }],
    ["with opencode's title prompt in a user message", chat(user(OPENCODE_TITLE))],
    ['for a title and another field', format('title', 'body')],
    ['for a title after a reply', { ...chat(user('a'), assistant('b'), user('c')), ...format('title') }],
    ['for a title with tools', { ...format('title'), tools: [tool('read')] }],
    ['for JSON without a schema', { responseFormat: { type: 'json_object' } }],
    ['for only one of the routing fields', format('reasoning')],
    ['for the next speaker and another field', format('reasoning', 'next_speaker', 'answer')],
    ['whose only tool has a title argument', { tools: [tool('publish', json('title'))] }],
    ['with the JSON tool and another tool', { tools: [tool('respond_in_schema', json('title')), tool('read')] }],
    [
      "with Gemini CLI's snapshot prompt and tools",
      { ...chat(system(GEMINI_SNAPSHOT), user('a')), tools: [tool('glob')] },
    ],
    [
      "with Gemini CLI's snapshot prompt but without the snapshot tag",
      chat(system(GEMINI_SNAPSHOT.split('<')[0] ?? ''), user('a')),
    ],
    [
      'with the tool complete_task but another system prompt',
      { ...chat(system('Finish.'), user('a')), tools: [tool('complete_task')] },
    ],
    [
      "with the system prompt of Gemini CLI's sub-agents but without their tool",
      { ...chat(system(GEMINI_SUBAGENT)), tools: [tool('glob')] },
    ],
    [
      'with that system prompt in a user message',
      { ...chat(system('s'), user(GEMINI_SUBAGENT)), tools: [tool('complete_task')] },
    ],
    ["with the prompt of Qwen Code's sub-agents in a user message", chat(system('s'), user(QWEN_SUBAGENT))],
    ["whose user quotes Qwen Code's summary prompt", chat(user(`Improve this: ${QWEN_SUMMARY} ${QWEN_DIRECTIVE}`))],
    ["with Qwen Code's summary prompt but without the snapshot tag", chat(system(QWEN_SUMMARY), user('Write a poem.'))],
    ["that quotes Qwen Code's memory prompt", chat(system(`You are not that agent: ${QWEN_MEMORY}`), user('a'))],
    ["with Qwen Code's memory prompt in a user message", chat(system('s'), user(QWEN_MEMORY))],
  ])("are the main agent's for a request %s", (_, more) => {
    expect(label({}, more)).toEqual(MAIN);
  });

  it('identify a sub-agent, also when it compacts', () => {
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

  it('put an agent that writes memories into a separate thread', () => {
    const { thread, callKind } = label({}, chat(system(QWEN_MEMORY), user('a')));
    expect(callKind).toBe('memory');
    expect(thread).not.toBe('main');
  });

  it('are overridden by labels from headers', () => {
    const turn = codexHeaders({ request_kind: 'turn', thread_source: 'user' });
    expect(label(turn, { ...chat(system(GEMINI_SUBAGENT)), tools: [tool('complete_task')] })).toEqual(MAIN);
    const compaction = codexHeaders({ request_kind: 'compaction', thread_source: 'user' });
    expect(label(compaction, format('title')).callKind).toBe('compaction');
  });
});

function jsonTool(...fields: string[]): Partial<LabelInput> {
  return { tools: [tool('respond_in_schema', json(...fields))] };
}
