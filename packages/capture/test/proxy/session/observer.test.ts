import { passThroughSpan, systemClock } from '@floe-rl/core';
import { samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createProxy, type ModelProxy } from '../../../src/proxy/http/proxy.ts';
import type { EndedCall } from '../../../src/proxy/session/call-report.ts';
import type { ProxySessionSpec } from '../../../src/proxy/session/session-spec.ts';
import { json } from '../../engines/scripted-server.ts';
import { chatBody, Rig } from '../rig.ts';

const PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const KEY = 'key-0123456789012345678901234567890123456';

let rig: Rig;
let proxy: ModelProxy;
let calls: EndedCall[];
beforeEach(async () => {
  rig = await Rig.start();
  calls = [];
  const observer = (call: EndedCall): void => void calls.push(call);
  proxy = createProxy({ engines: rig.engines, journal: rig.journal, clock: systemClock, observer });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
});
afterEach(async () => {
  await proxy.close();
  await rig.stop();
});

async function open(over: Partial<ProxySessionSpec> = {}): Promise<void> {
  await proxy.open({
    sessionId: 'ses_1',
    attempt: 1,
    sampleIndex: 0,
    key: KEY,
    socketPath: null,
    modelName: 'policy',
    sampling: samplingSchema.parse({}),
    engine: taskEngineSchema.parse({}),
    ...over,
  });
}

function post(body: string, key = KEY, more: Record<string, string> = {}): Promise<number> {
  const headers = { 'content-type': 'application/json', ...more };
  return fetch(`${proxy.origin}/s/${key}/v1/chat/completions`, { method: 'POST', headers, body }).then(
    async (reply) => {
      await reply.text();
      return reply.status;
    },
  );
}

const chat = (): string => JSON.stringify(chatBody());

describe('the observer of model calls', () => {
  it('is called once for an answered call, with the time of its engine', async () => {
    await open();
    expect(await post(chat())).toBe(200);
    expect(calls).toEqual([
      {
        dialect: 'openai_chat',
        engineId: expect.any(String),
        code: 'ok',
        totalMs: expect.any(Number),
        engineMs: expect.any(Number),
      },
    ]);
    const [{ totalMs, engineMs }] = calls as [EndedCall];
    expect(totalMs).toBeGreaterThanOrEqual(engineMs ?? Number.NaN);
  });

  it('is called once for a call that several requests joined', async () => {
    let release = (): void => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const { onChat } = rig.server;
    rig.server.onChat = async (received) => {
      await held;
      await onChat(received);
    };
    await open();
    const named = { 'idempotency-key': 'one' };
    const both = [post(chat(), KEY, named), post(chat(), KEY, named)];
    await expect.poll(() => rig.server.received.length).toBe(1);
    release();
    expect(await Promise.all(both)).toEqual([200, 200]);
    expect(calls.map(({ code }) => code)).toEqual(['ok']);
  });

  it('is called with the engine that refused a call, and for calls that were refused before they began', async () => {
    rig.server.onChat = (received) => json(received.response, 400, { error: { message: 'no' } });
    await open();
    expect(await post(chat())).toBeGreaterThanOrEqual(400);
    expect(await post('{')).toBe(400);
    expect(await post(chat(), 'another-key-012345678901234567890123')).toBe(401);
    // Token counts and model lists are not model calls, so their refusals are not reported.
    const count = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{' };
    expect((await fetch(`${proxy.origin}/s/${KEY}/v1/messages/count_tokens`, count)).status).toBe(400);
    expect((await fetch(`${proxy.origin}/s/another-key-012345678901234567890123/v1/models`)).status).toBe(401);
    expect(calls.map(({ code, engineId, engineMs }) => [code, engineId !== null, engineMs])).toEqual([
      ['engine_rejected', true, null],
      ['malformed_json', false, null],
      ['unauthorized', false, null],
    ]);
  });
});

describe('the trace of a session', () => {
  it('is sent to the engine', async () => {
    await open({ span: passThroughSpan(PARENT) });
    await post(chat());
    expect(rig.server.received.map(({ headers }) => headers.traceparent)).toEqual([PARENT]);
  });

  it('is not sent when the session has none', async () => {
    await open();
    await post(chat());
    expect(rig.server.received.map(({ headers }) => headers.traceparent)).toEqual([undefined]);
  });
});
