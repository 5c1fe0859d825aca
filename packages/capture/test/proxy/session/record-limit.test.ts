import { FloeError, MIB } from '@floe-rl/core';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { RecordLimit } from '../../../src/proxy/session/record-limit.ts';
import type { CompletionRequest } from '../../../src/tokens/completion.ts';
import { NO_IMAGES } from '../../../src/tokens/images.ts';
import { json, type Received, vllmReply } from '../../engines/scripted-server.ts';
import { makeCompletion } from '../../tokens/session.ts';
import { ask } from '../dialect-bodies.ts';
import { Rig } from '../rig.ts';

const LIMIT = 64 * 1024;

let rig: Rig;
let key: string;
beforeEach(async () => {
  rig = await Rig.start();
  key = rig.key();
});
afterEach(() => rig.stop());

const names = DIALECTS.map(({ name }) => name);

function send(asked: { path: string; body: unknown }) {
  return rig.send({ path: `/s/${key}${asked.path}`, body: asked.body }).reply;
}

describe('a bound on the size of the record', () => {
  it.each(names)('ends the session with a refusal that %s harnesses neither repeat nor compact for', async (name) => {
    let limitCalls = 0;
    const session = await rig.open({ key, maxRecordedBytes: LIMIT, onRecordLimit: () => void limitCalls++ });
    expect((await send(ask(name, { text: 'a'.repeat(LIMIT / 2) }))).status).toBe(200);
    expect(limitCalls).toBe(0);
    for (const stream of [false, true]) {
      const { status, body, headers } = await send(ask(name, { text: 'b'.repeat(LIMIT), stream }));
      expect(status).toBe(400);
      expect(headers['retry-after']).toBeUndefined();
      expect(JSON.parse(body).error.message).toContain('agent.max_recorded_mb');
      expect(body).not.toMatch(/context|too long|token|length|exceed|maximum|window|prompt/i);
    }
    // The session is over, so that later requests are refused as well, even if they would still fit.
    expect((await send(ask(name, { text: 'small' }))).status).toBe(400);
    expect(limitCalls).toBe(1);
    expect(session).toMatchObject({ completionCount: 1, failures: { refusal: { code: 'record_limit' } } });
    expect(rig.server.chats).toHaveLength(1);
  });

  it('counts a history that is sent again only once', async () => {
    await rig.open({ key, maxRecordedBytes: LIMIT });
    const first = { role: 'user', content: 'a'.repeat(LIMIT / 2) };
    for (let turn = 0; turn < 8; turn++) {
      const added = Array.from({ length: turn }, (_, index) => ({ role: 'user', content: `more ${index}` }));
      const promptIds = Array.from({ length: turn + 1 }, (_, index) => index);
      rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { promptIds }));
      expect((await rig.chat(key, { messages: [first, ...added] }).reply).status).toBe(200);
    }
  });

  it('is not exceeded by the requests of concurrent calls, which are refused temporarily', async () => {
    const session = await rig.open({ key, maxRecordedBytes: LIMIT });
    const held = new Promise<Received>((resolve) => {
      rig.server.onChat = resolve;
    });
    const call = (letter: string) => send(ask('openai_chat', { text: letter.repeat(0.6 * LIMIT) }));
    const first = call('a');
    const received = await held;
    expect(await call('b')).toMatchObject({ status: 429, headers: { 'retry-after': expect.any(String) } });
    json(received.response, 500, { error: { message: 'boom' } });
    expect((await first).status).toBe(502);
    rig.server.onChat = (later) => json(later.response, 200, vllmReply(later));
    // The failed call has released the bytes that were reserved for it, so the same request fits now.
    expect((await call('b')).status).toBe(200);
    expect((await call('c')).status).toBe(400);
    expect(session.completionCount).toBe(1);
  });

  it('counts images of calls that are recorded', async () => {
    await rig.open({ key, maxRecordedBytes: LIMIT });
    const call = (letter: string) => {
      const url = `data:image/png;base64,${letter.repeat(0.6 * LIMIT)}`;
      return rig.chat(key, { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }] });
    };
    expect((await call('A').reply).status).toBe(200);
    expect((await call('A').reply).status).toBe(200);
    expect((await call('B').reply).status).toBe(400);
  });

  it('is exceeded by no more than the replies, whatever runs concurrently', () => {
    const actions = fc.array(fc.record({ chars: fc.nat(400), answered: fc.boolean() }), { maxLength: 200 });
    fc.assert(
      fc.property(actions, fc.integer({ min: 1, max: 6 }), (calls, parallel) => {
        const limit = new RecordLimit(1_000, () => undefined);
        const running: { request: CompletionRequest; bytes: number; answered: boolean; release: () => void }[] = [];
        let recordedBytes = 0;
        for (const { chars, answered } of calls) {
          const { request } = makeCompletion({
            prompt: [],
            response: [],
            messages: [{ role: 'user', content: 'a'.repeat(chars) }],
          });
          const bytes = request.messageTexts.join('').length + request.toolsText.length;
          try {
            running.push({ request, bytes, answered, release: limit.reserve(request, NO_IMAGES) });
          } catch (error) {
            expect(FloeError.is(error) && ['record_limit', 'overloaded'].includes(error.code)).toBe(true);
          }
          const done = running.length >= parallel ? running.shift() : undefined;
          if (done === undefined) continue;
          done.release();
          if (!done.answered) continue;
          limit.add(done.request, done.bytes);
          recordedBytes += done.bytes;
        }
        expect(limit.bytes).toBe(recordedBytes);
        expect(recordedBytes).toBeLessThanOrEqual(1_000);
      }),
    );
  });

  it('is named in MiB', () => {
    const limit = new RecordLimit(2 * MIB, () => undefined);
    const { request } = makeCompletion({
      prompt: [],
      response: [],
      messages: [{ role: 'user', content: 'a'.repeat(2 * MIB) }],
    });
    expect(() => limit.reserve(request, NO_IMAGES)).toThrow('the 2 MiB of agent.max_recorded_mb');
  });
});
