import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { IdScanner } from '../../../src/engines/chat/reply-scan.ts';
import type { EngineServer } from '../../../src/engines/engine-server.ts';
import { vllmServer } from '../../../src/engines/vllm/engine.ts';
import { MessageReader } from '../../../src/engines/vllm/message-reader.ts';
import type { ReplyContext } from '../../../src/engines/vllm/reply.ts';
import { ReplyPreview } from '../../../src/engines/vllm/reply-preview.ts';
import { json, ScriptedServer } from '../scripted-server.ts';
import { callsOf, DERENDER, type Json, serveTokens, tokenRequest } from './scripted-tokens.ts';

let server: ScriptedServer;
let client: EngineServer;
const clock = new VirtualClock();

beforeEach(async () => {
  server = new ScriptedServer(({ response }) => json(response, 500, {}));
  await server.listen();
  client = vllmServer(engineSpecSchema.parse({ base_url: server.baseUrl }), clock);
});
afterEach(async () => {
  await client.close();
  await server.close();
});

/** A reader that remembers its last preview, so that a test can wait for it. */
class ObservedReader extends MessageReader {
  last: Promise<unknown> = Promise.resolve();

  override preview(...args: Parameters<MessageReader['preview']>): ReturnType<MessageReader['preview']> {
    const preview = super.preview(...args);
    this.last = preview;
    return preview;
  }
}

const FACTS = {
  model: 'toy',
  modelNames: new Set(['toy']),
  maxModelLen: null,
  serverVersion: null,
  routes: { generate: true, render: true, derender: true, tokenize: true, detokenize: true, pause: true, abort: true },
  unknownFields: new Set<string>(),
};
const CONTEXT: ReplyContext = {
  completionId: 'cpl_mine',
  sessionId: 'ses_1',
  models: FACTS.modelNames,
  scanner: new IdScanner(),
};
const CALL = { id: 'call_1', type: 'function', function: { name: 'sh', arguments: '{}' } };

/**
 * Samples 100 ids of a reply. Previews the first 20 ids, and then all 100 unless the previews have ended. `chunk` changes the reply of the
 * parser for streams. Returns what the listener received, and the number of requests to the server's parsers.
 */
async function previewed(message: Json, chunk: (reply: Json) => unknown = (reply) => reply) {
  serveTokens(server, { message });
  const { [DERENDER]: derender } = server.routes;
  server.routes[DERENDER] = (received) => {
    if (received.body.stream !== true) return derender?.(received);
    const delta = { id: 'cpl_mine', model: 'toy', choices: [{ index: 0, delta: message, finish_reason: null }] };
    json(received.response, 200, { chunk: chunk(delta), stream_state: {} });
  };
  const reader = new ObservedReader(client, FACTS, clock);
  const deltas: unknown[] = [];
  const listener = { started: () => {}, delta: (delta: unknown) => void deltas.push(delta) };
  const request = { ...tokenRequest(), prompt: { ids: Int32Array.of(1), json: Buffer.from('1') } };
  const signal = new AbortController().signal;
  const preview = new ReplyPreview({ reader, clock, request, context: CONTEXT, listener, showsText: true, signal });
  for (const count of [20, 100]) {
    preview.take(new Array<number>(count).fill(7));
    await reader.last.catch(() => {});
    await new Promise(setImmediate);
  }
  await preview.end();
  return { deltas, requests: callsOf(server, DERENDER).length };
}

/** A reader whose previews end when the test ends them. */
class SteppedReader extends MessageReader {
  readonly counts: number[] = [];
  /** The text that the parsers find. */
  content = '';
  private finish: () => void = () => {};

  override preview(...[, ids]: Parameters<MessageReader['preview']>): ReturnType<MessageReader['preview']> {
    this.counts.push(ids.length);
    return new Promise((resolve) => {
      const { content } = this;
      const streamed = { reasoning: '', text: content, hasCalls: false };
      this.finish = () => resolve({ streamed, whole: { role: 'assistant', content } });
    });
  }

  async end(): Promise<void> {
    this.finish();
    await new Promise(setImmediate);
  }
}

function steppedPreview(time: VirtualClock): { preview: ReplyPreview; reader: SteppedReader } {
  const reader = new SteppedReader(client, FACTS, time);
  const request = { ...tokenRequest(), prompt: { ids: Int32Array.of(1), json: Buffer.from('1') } };
  const listener = { started: () => {}, delta: () => {} };
  const signal = new AbortController().signal;
  const deps = { reader, clock: time, request, context: CONTEXT, listener, showsText: true, signal };
  return { preview: new ReplyPreview(deps), reader };
}

const idsOf = (count: number): number[] => new Array<number>(count).fill(7);

describe('the number of ids of each preview', () => {
  it('is 1 at first, and that of every chunk or a quarter more until something is shown', async () => {
    const { preview, reader } = steppedPreview(new VirtualClock());
    for (let count = 1; count <= 801; count += 4) {
      preview.take(idsOf(count));
      await reader.end();
    }
    await preview.end();
    expect(reader.counts.slice(0, 9)).toEqual([1, 5, 9, 13, 17, 25, 33, 45, 57]);
    expect(reader.counts.reduce((sum, count) => sum + count, 0) / 801).toBeLessThan(5);
  });

  it('grows by 16 and then by a quarter once something is shown', async () => {
    const { preview, reader } = steppedPreview(new VirtualClock());
    for (let count = 1; count <= 201; count += 4) {
      if (count === 5) reader.content = 'Hello.';
      preview.take(idsOf(count));
      await reader.end();
    }
    await preview.end();
    expect(reader.counts).toEqual([1, 5, 21, 37, 53, 69, 89, 113, 145, 185]);
  });

  it('is that of the chunk after a preview that took longer than a chunk', async () => {
    const { preview, reader } = steppedPreview(new VirtualClock());
    for (const count of [1, 5, 9]) preview.take(idsOf(count));
    await reader.end();
    preview.take(idsOf(13));
    await reader.end();
    await preview.end();
    expect(reader.counts).toEqual([1, 13]);
  });

  it('is not awaited longer than ten seconds in a long reply', async () => {
    const time = new VirtualClock();
    const { preview, reader } = steppedPreview(time);
    preview.take(idsOf(8_000));
    await reader.end();
    time.advance(9_999);
    preview.take(idsOf(9_250));
    time.advance(1);
    preview.take(idsOf(9_251));
    await reader.end();
    await preview.end();
    expect(reader.counts).toEqual([8_000, 9_251]);
  });
});

const thinking = (text: string) => ({ kind: 'reasoning', text });
const text = (shown: string) => ({ kind: 'text', text: shown });

describe('the previews of a reply', () => {
  it('end at the first tool call, after the whole thinking that precedes it', async () => {
    const message = { role: 'assistant', content: null, reasoning: 'One call.\n', tool_calls: [CALL] };
    expect(await previewed(message)).toEqual({ deltas: [thinking('One call.\n')], requests: 2 });
  });

  it.each([
    ['absent', {}],
    ['null', { tool_calls: null }],
    ['empty', { tool_calls: [] }],
  ])('continue while the list of tool calls is %s', async (_, calls) => {
    const message = { role: 'assistant', content: 'Hello.', ...calls };
    expect(await previewed(message)).toEqual({ deltas: [text('Hello.')], requests: 4 });
  });

  it('show thinking from either field that may contain it', async () => {
    const named = await previewed({ role: 'assistant', content: 'Hi.', reasoning: 'Hm.' });
    expect(named.deltas).toEqual([thinking('Hm.'), text('Hi.')]);
    const older = await previewed({ role: 'assistant', content: 'Hi.', reasoning_content: 'Hm.' });
    expect(older.deltas).toEqual([thinking('Hm.'), text('Hi.')]);
  });

  it('show no text, and only settled thinking, until the parser for streams has found text', async () => {
    const message = { role: 'assistant', content: 'Hello.', reasoning: 'Hm.\n' };
    const withoutText = (reply: Json) => ({ ...reply, choices: [{ index: 0, delta: { reasoning: 'Hm.\n' } }] });
    expect((await previewed(message, withoutText)).deltas).toEqual([thinking('Hm.')]);
  });

  it('show nothing of a message without content', async () => {
    expect((await previewed({ role: 'assistant' })).deltas).toEqual([]);
  });

  it.each<[string, (reply: Json) => unknown]>([
    ['of another call', (reply) => ({ ...reply, id: 'cpl_other' })],
    ['of another model', (reply) => ({ ...reply, model: 'other' })],
    ['without a choice', (reply) => ({ ...reply, choices: [] })],
    ['with two choices', (reply) => ({ ...reply, choices: [...(reply.choices as []), ...(reply.choices as [])] })],
    ['with tool calls that are no list', () => ({ choices: [{ delta: { content: 'Hello.', tool_calls: CALL } }] })],
    ['with content that is no text', () => ({ choices: [{ delta: { content: 5 } }] })],
  ])('end without showing anything when the server returns a part %s', async (_, chunk) => {
    expect(await previewed({ role: 'assistant', content: 'Hello.' }, chunk)).toEqual({ deltas: [], requests: 2 });
  });
});
