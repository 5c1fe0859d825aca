// An emoji that was cut in the middle leaves a lone surrogate in a text. Engines whose tokenizers are in Python refuse it.

import { FloeError, systemClock } from '@floe-rl/core';
import { type CaptureMode, type DialectName, samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { createProxy, type ModelProxy } from '../../../src/proxy/http/proxy.ts';
import { callDirectly } from '../../../src/proxy/session/direct-call.ts';
import type { ProxySession } from '../../../src/proxy/session/session.ts';
import { sendStream, vllmChunks } from '../../engines/scripted-server.ts';
import { Rig } from '../rig.ts';
import { called, TemplatePool } from '../template-pool.ts';
import { recordedIds, TokenSession } from '../token-session.ts';

const HALF = '\ud83d';
/** The policy's arguments, with the escape of a lone surrogate, which is valid JSON. */
const ARGUMENTS = '{"command":"echo \\ud83d","\\ude00":1}';
const KEY = 'key-0123456789012345678901234567890123456789';

type Body = Record<string, unknown>;
type Json = ReturnType<typeof JSON.parse>;

const SCHEMA = { type: 'object', properties: { command: { type: 'string', description: `shell ${HALF}` } } };
const DESCRIPTION = `Runs ${HALF}`;

/**
 * Two requests of a conversation in each dialect, with lone surrogates in every text that an agent can send. `second` makes the request that
 * follows a reply with a tool call.
 */
const CONVERSATIONS: Record<DialectName, { path: string; first: Body; second: (reply: Json) => Body }> = {
  openai_chat: conversation(
    '/v1/chat/completions',
    {
      model: 'policy',
      tools: [{ type: 'function', function: { name: 'sh', description: DESCRIPTION, parameters: SCHEMA } }],
    },
    'messages',
    [
      { role: 'system', content: `You are ${HALF}` },
      { role: 'user', content: [{ type: 'text', text: `hi ${HALF}` }] },
    ],
    ({ choices: [{ message }] }) => [
      message,
      { role: 'tool', tool_call_id: message.tool_calls[0].id, content: `out ${HALF}` },
    ],
  ),
  openai_responses: conversation(
    '/v1/responses',
    {
      model: 'policy',
      instructions: `You are ${HALF}`,
      tools: [{ type: 'function', name: 'sh', description: DESCRIPTION, parameters: SCHEMA }],
    },
    'input',
    [{ role: 'user', content: `hi ${HALF}` }],
    ({ output }) => [
      ...output,
      { type: 'function_call_output', call_id: output.at(-1).call_id, output: `out ${HALF}` },
    ],
  ),
  anthropic: conversation(
    '/v1/messages',
    {
      model: 'policy',
      max_tokens: 100,
      system: `You are ${HALF}`,
      tools: [{ name: 'sh', description: DESCRIPTION, input_schema: SCHEMA }],
    },
    'messages',
    [{ role: 'user', content: `hi ${HALF}` }],
    ({ content }) => [
      { role: 'assistant', content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: content.at(-1).id, content: `out ${HALF}` }] },
    ],
  ),
  gemini: conversation(
    '/v1beta/models/policy:generateContent',
    {
      systemInstruction: { parts: [{ text: `You are ${HALF}` }] },
      tools: [{ functionDeclarations: [{ name: 'sh', description: DESCRIPTION, parametersJsonSchema: SCHEMA }] }],
    },
    'contents',
    [{ role: 'user', parts: [{ text: `hi ${HALF}` }] }],
    ({ candidates: [{ content }] }) => {
      const { id, name } = content.parts.at(-1).functionCall;
      const answer = { functionResponse: { id, name, response: { output: `out ${HALF}` } } };
      return [content, { role: 'user', parts: [answer] }];
    },
  ),
};

function conversation(
  path: string,
  fixed: Body,
  field: string,
  begin: readonly object[],
  answered: (reply: Json) => readonly object[],
) {
  return {
    path,
    first: { ...fixed, [field]: begin },
    second: (reply: Json) => ({ ...fixed, [field]: [...begin, ...answered(reply)] }),
  };
}

/** Whether a JSON value has a lone surrogate, also in the arguments of a tool call, which are JSON in a string. */
function hasHalf(value: unknown): boolean {
  if (typeof value === 'string') return !value.isWellFormed() || hasHalf(objectIn(value));
  if (typeof value !== 'object' || value === null) return false;
  return Object.entries(value).some(([key, member]) => !key.isWellFormed() || hasHalf(member));
}

function objectIn(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

/** Starts a pool that refuses lone surrogates in messages and tools, and whose policy escapes one. */
async function strictPool(mode: CaptureMode): Promise<TemplatePool> {
  const pool = await TemplatePool.start('append_only');
  pool.mode = mode;
  const isRefused = ({ messageTexts, toolsText }: { messageTexts: readonly string[]; toolsText: string }): boolean =>
    hasHalf([...messageTexts, toolsText].map((text) => JSON.parse(text) as unknown));
  pool.refuse = isRefused;
  const generate = pool.generate.bind(pool);
  pool.generate = async (request) => {
    if (request.prompt === null && isRefused(request)) throw new FloeError('engine_rejected', 'surrogates not allowed');
    return generate(request);
  };
  const content = `Look ${HALF}`;
  pool.replies.push({ message: { content, reasoning_content: `Hm ${HALF}`, tool_calls: [called('sh', ARGUMENTS)] } });
  return pool;
}

let proxy: ModelProxy | null = null;
let rig: Rig | null = null;
afterEach(async () => {
  await proxy?.close();
  await rig?.stop();
  proxy = null;
  rig = null;
});

async function openSession(pool: TemplatePool): Promise<ProxySession> {
  const { journal } = new Rig();
  proxy = createProxy({ engines: pool.asPool, journal, clock: systemClock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const spec = { sessionId: 'ses_1', attempt: 0, sampleIndex: 0, key: KEY, socketPath: null, modelName: 'policy' };
  return proxy.open({ ...spec, sampling: samplingSchema.parse({}), engine: taskEngineSchema.parse({}) });
}

async function post(path: string, body: Body): Promise<Json> {
  const response = await fetch(`${proxy?.origin}/s/${KEY}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const reply = (await response.json()) as Json;
  expect([response.status, hasHalf(reply)], JSON.stringify(reply)).toEqual([200, false]);
  return reply;
}

/** Expects that the second of the session's calls continues the first. */
function expectContinued(session: ProxySession, mode: CaptureMode): void {
  const [first, second] = session.completions();
  expect(session.completionCount).toBe(2);
  if (first === undefined || second === undefined || mode !== 'tokens') return;
  const before = recordedIds(first);
  expect([...second.promptIds].slice(0, before.length)).toEqual(before);
  expect(second.capture).toMatchObject({ mode: 'tokens', spliced_onto: first.completionId });
}

describe.each(DIALECTS.flatMap(({ name }) => [[name, 'tokens'] as const, [name, 'chat'] as const]))(
  'a conversation with lone surrogates in %s, in %s mode',
  (name, mode) => {
    it('reaches the engine and the harness as valid Unicode, and continues its trace', async () => {
      const session = await openSession(await strictPool(mode));
      const { path, first, second } = CONVERSATIONS[name];
      const reply = await post(path, first);
      await post(path, second(reply));
      expectContinued(session, mode);
      expect(session.failures.ofMain).toBeNull();
      const [{ message } = { message: null }] = session.completions();
      expect(message).toMatchObject({
        content: 'Look \ufffd',
        tool_calls: [{ function: { arguments: '{"command":"echo \\ufffd","\\ufffd":1}' } }],
      });
    });
  },
);

describe.each(['tokens', 'chat'] as const)('a conversation of an agent on the node, in %s mode', (mode) => {
  it('reaches the engine as valid Unicode, and continues its trace', async () => {
    const session = new TokenSession(await strictPool(mode)).calls;
    const call = { thread: 'main', isTrained: true, toolChoice: null, maxTokens: null, enginePool: null };
    const { signal } = new AbortController();
    const tools = [
      { type: 'function' as const, function: { name: 'sh', description: DESCRIPTION, parameters: SCHEMA } },
    ];
    const user = { role: 'user' as const, content: `hi ${HALF}` };
    const first = await callDirectly(session, { ...call, messages: [user], tools, previousCompletionId: null }, signal);
    expect(hasHalf(first.message)).toBe(false);
    const id = first.message.tool_calls?.[0]?.id ?? '';
    const result = { role: 'tool' as const, tool_call_id: id, content: `out ${HALF}` };
    const next = { ...call, messages: [result], tools: null, previousCompletionId: first.completionId };
    await callDirectly(session, next, signal);
    expectContinued(session, mode);
  });
});

describe('a streamed reply', () => {
  it.each(DIALECTS.map(({ name }) => name))(
    'has no lone surrogate in %s, wherever the chunks are cut',
    async (name) => {
      rig = await Rig.start();
      rig.server.onChat = (received) => {
        const toolCalls = [{ id: 'c', name: 'sh', arguments: ARGUMENTS }];
        sendStream(
          received.response,
          vllmChunks(received, { content: `Look ${HALF} `, reasoning: `Hm${HALF}`, toolCalls }),
        );
      };
      await rig.open({ key: KEY });
      const { path, first } = CONVERSATIONS[name];
      const isGemini = name === 'gemini';
      const { status, body } = await rig.send({
        path: `/s/${KEY}${isGemini ? path.replace('generateContent', 'streamGenerateContent?alt=sse') : path}`,
        body: isGemini ? first : { ...first, stream: true },
      }).reply;
      expect(status).toBe(200);
      expect(body).toContain('\ufffd');
      const texts = body.split('\n').filter((line) => line.startsWith('data: {'));
      for (const line of texts) expect(hasHalf(JSON.parse(line.slice('data: '.length))), line).toBe(false);
      expect(body.includes('ud83d') || body.includes('ude00')).toBe(false);
    },
  );
});
