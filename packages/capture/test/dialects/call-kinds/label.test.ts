import { readdirSync, readFileSync } from 'node:fs';
import { type CallRules, callKindSchema, dialectNameSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { callRulesOf, threadKeyOf } from '../../../src/dialects/call-kinds/label.ts';
import type { Headers } from '../../../src/dialects/dialect.ts';
import { matchRoute } from '../../../src/dialects/registry.ts';
import {
  ALL_RULES,
  assistant,
  chat,
  codexHeaders,
  expectForeign,
  label,
  MAIN,
  system,
  user,
} from './label-requests.ts';

/**
 * Schema of a model call that a real harness sent, shortened to the parts that determine its kind and its agent thread. If no header
 * identifies the thread, the name of the thread was chosen by hand.
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
  sessions.map(({ name, calls }) => ({ name: `${harness} ${version}: ${name}`, harness, calls })),
);

function parsed({ dialect, path, headers, body }: CapturedCall, harness: string) {
  const url = new URL(path, 'http://localhost');
  const route = matchRoute('POST', url.pathname, headers);
  if (!route.found) throw new Error(`no route for ${path}`);
  expect(route.dialect.name).toBe(dialect);
  const { model, stream } = route;
  const callRules = callRulesOf({ harness });
  return route.dialect.parseRequest(body, { headers, query: url.searchParams, callRules, model, stream });
}

describe('captured calls of every harness', () => {
  it('include every harness', () => {
    expect(CAPTURES.map(({ harness }) => harness).sort()).toEqual(
      ['claude_code', 'codex', 'gemini_cli', 'mini_swe_agent', 'opencode', 'pi', 'qwen_code'].sort(),
    );
  });

  it.each(SESSIONS)('are labelled correctly: $name', ({ harness, calls }) => {
    const labels = calls.map((call) => parsed(call, harness));
    expect(labels.map(({ callKind }) => callKind)).toEqual(calls.map(({ callKind }) => callKind));
    // Two model calls must get the same agent thread if the file with the captured calls gives their threads the same name, and otherwise
    // different threads.
    const names = new Map<string, string>();
    for (const [index, { thread }] of calls.entries()) names.set(thread, labels[index]?.thread ?? '');
    expect(labels.map(({ thread }) => thread)).toEqual(calls.map(({ thread }) => names.get(thread)));
    expect(new Set(names.values()).size).toBe(names.size);
    expect(names.get('main') ?? 'main').toBe('main');
    const ids = calls.flatMap(({ headers }) => Object.values(headers));
    for (const [word, name] of names) if (ids.includes(word)) expect(name).toBe(word);
  });

  it.each(SESSIONS)("are all the main agent's in a session of the shell harness: $name", ({ calls }) => {
    for (const call of calls) {
      const { thread, callKind } = parsed(call, 'shell');
      // A session of the shell harness has no call rules. Without rules, only one kind of call is recognised: a compaction that the
      // request demands through the Responses API.
      const asked = JSON.stringify(call.body).includes('compaction_trigger');
      expect({ thread, callKind }).toEqual({ thread: 'main', callKind: asked ? 'compaction' : 'main' });
    }
  });
});

describe('labels from headers', () => {
  it.each<[CallRules, string, Headers, string, string]>([
    ['codex', 'they state nothing', {}, 'main', 'main'],
    ['claude_code', 'Claude Code names a sub-agent', { 'x-claude-code-agent-id': 'a5' }, 'a5', 'subagent'],
    [
      'opencode',
      'opencode names a parent session',
      { 'x-parent-session-id': 'p', 'x-session-id': 'c' },
      'c',
      'subagent',
    ],
    ['opencode', 'opencode names no parent session', { 'x-session-id': 'c' }, 'main', 'main'],
    [
      'copilot_cli',
      'Copilot CLI marks a call of the user',
      { 'x-interaction-type': 'conversation-user' },
      'main',
      'main',
    ],
    ['codex', 'Codex works on a turn', codexHeaders({ request_kind: 'turn', thread_source: 'user' }), 'main', 'main'],
    [
      'codex',
      'Codex compacts',
      codexHeaders({ request_kind: 'compaction', thread_source: 'user' }),
      'main',
      'compaction',
    ],
    ['codex', 'Codex prewarms', codexHeaders({ request_kind: 'prewarm', thread_source: 'user' }), 'main', 'probe'],
    ['codex', 'Codex names an unknown kind', codexHeaders({ request_kind: 'toString' }), 'main', 'main'],
    [
      'codex',
      "a sub-agent of Codex's takes a turn",
      codexHeaders({ request_kind: 'turn', thread_source: 'subagent' }, { 'thread-id': 't' }),
      't',
      'subagent',
    ],
    [
      'codex',
      "a sub-agent of Codex's compacts",
      codexHeaders({ request_kind: 'compaction', thread_source: 'subagent' }, { 'thread-id': 't' }),
      't',
      'compaction',
    ],
    [
      'codex',
      'Codex reviews and sends no metadata',
      { 'x-openai-subagent': 'review', 'thread-id': 't' },
      't',
      'subagent',
    ],
    ['codex', 'Codex compacts in a sub-agent', { 'x-openai-subagent': 'compact', 'thread-id': 't' }, 't', 'compaction'],
    [
      'codex',
      'Codex consolidates memories',
      { 'x-openai-subagent': 'memory_consolidation', 'thread-id': 't' },
      't',
      'memory',
    ],
    ['codex', 'Codex generates memories', { ...codexHeaders({}), 'x-openai-memgen-request': 'true' }, 'main', 'memory'],
    [
      'codex',
      'Codex names only a parent thread',
      { 'x-codex-parent-thread-id': 'p', 'thread-id': 't' },
      't',
      'subagent',
    ],
    ['codex', 'Codex names the thread only in its metadata', codexless('t'), 't', 'subagent'],
  ])('are correct by the rules of %s, and by no other rules, when %s', (rules, _, headers, thread, callKind) => {
    expect(label(rules, headers)).toEqual({ thread, callKind });
    expectForeign([rules], headers);
  });

  it('name the thread of a sub-agent without an id after its prompt', () => {
    const unnamed: readonly [CallRules, Headers][] = [
      ['copilot_cli', { 'x-interaction-type': 'conversation-subagent' }],
      ['opencode', { 'x-parent-session-id': 'p' }],
      ['codex', { 'x-openai-subagent': 'review' }],
    ];
    for (const [rules, headers] of unnamed) {
      const one = label(rules, headers, chat(system('s'), user('task one')));
      const later = label(rules, headers, chat(system('s'), user('task one'), assistant('yes'), user('on')));
      const two = label(rules, headers, chat(system('s'), user('task two')));
      const other = label(rules, headers, chat(system('t'), user('task one')));
      expectForeign([rules], headers, chat(system('s'), user('task one')));
      expect(one).toMatchObject({ callKind: 'subagent' });
      expect(later).toEqual(one);
      expect(new Set([one.thread, two.thread, other.thread, 'main']).size).toBe(4);
    }
  });

  it('state the main agent when the headers are invalid', () => {
    const huge = JSON.stringify({ request_kind: 'compaction', more: 'x'.repeat(20_000) });
    for (const text of ['{', 'null', '{"request_kind":1}', '[]', '{"thread_source":{}}', huge]) {
      expect(label('codex', { 'x-codex-turn-metadata': text })).toEqual(MAIN);
    }
  });

  it('neither put a sub-agent into the main thread nor contain an unusable name', () => {
    const long = 'a'.repeat(500);
    const names = ['main', long, `${long}b`, 'ä', ' ', '\u0000'].map(
      (id) => label('claude_code', { 'x-claude-code-agent-id': id }).thread,
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
  const rules = fc.constantFrom(...ALL_RULES);
  const headers: fc.Arbitrary<Headers> = fc
    .tuple(
      fc.dictionary(fc.constantFrom(...HEADER_NAMES), fc.oneof(value, fc.array(value, { maxLength: 2 }))),
      fc.option(fc.oneof(metadata, fc.string()), { nil: undefined }),
    )
    .map(([named, codex]) => ({ ...named, ...(codex === undefined ? {} : { 'x-codex-turn-metadata': codex }) }));

  it('exist for any headers, have a bounded thread name, and leave the main thread only for a sub-agent', () => {
    fc.assert(
      fc.property(rules, headers, (by, given) => {
        const { thread, callKind } = label(by, given);
        expect(thread).toMatch(/^[\x21-\x7e]{1,128}$/);
        if (callKind === 'main') expect(thread).toBe('main');
        if (callKind === 'subagent') expect(thread).not.toBe('main');
        expect(threadKeyOf(by, given).length).toBeLessThan(20_000);
      }),
      { numRuns: 500 },
    );
  });

  it('are equal for equal keys and equal bodies', () => {
    fc.assert(
      fc.property(rules, headers, headers, (by, a, b) => {
        if (threadKeyOf(by, a) === threadKeyOf(by, b)) expect(label(by, a)).toEqual(label(by, b));
        // Headers such as `user-agent` do not state the agent thread, the purpose of the call or the run of the harness. They must not change
        // the key of the thread.
        expect(threadKeyOf(by, { ...a, 'x-request-id': 'r', 'user-agent': 'u' })).toBe(threadKeyOf(by, a));
      }),
      { numRuns: 500 },
    );
  });

  it('have different keys for different threads, purposes or runs', () => {
    const keys = (
      [
        ['claude_code', {}],
        ['claude_code', { 'x-claude-code-agent-id': 'a' }],
        ['claude_code', { 'x-claude-code-agent-id': 'b' }],
        ['claude_code', { 'x-claude-code-session-id': 'a' }],
        ['opencode', { 'x-session-id': 'a' }],
        ['opencode', { 'x-session-id': 'a', 'x-parent-session-id': 'p' }],
        ['copilot_cli', { 'x-interaction-type': 'conversation-subagent' }],
        ['codex', codexHeaders({ request_kind: 'turn', thread_source: 'user' })],
        ['codex', codexHeaders({ request_kind: 'prewarm', thread_source: 'user' })],
        ['codex', codexHeaders({ request_kind: 'turn', thread_source: 'subagent' }, { 'thread-id': 't' })],
      ] as const
    ).map(([by, given]) => threadKeyOf(by, given));
    expect(new Set(keys).size).toBe(keys.length);
  });
});

function codexless(id: string): Headers {
  return { 'x-codex-turn-metadata': JSON.stringify({ thread_source: 'subagent', thread_id: id }) };
}

describe('the rules of a session', () => {
  it('are those of its harness, and none for a harness without rules', () => {
    expect(callRulesOf({ harness: 'codex' })).toBe('codex');
    for (const harness of ['shell', 'mini_swe_agent', 'openhands', 'toString']) {
      expect(callRulesOf({ harness })).toBeNull();
    }
  });

  it('are those that the task names, whatever its harness is', () => {
    expect(callRulesOf({ harness: 'shell', call_rules: 'copilot_cli' })).toBe('copilot_cli');
    expect(callRulesOf({ harness: 'codex', call_rules: 'pi' })).toBe('pi');
  });
});
