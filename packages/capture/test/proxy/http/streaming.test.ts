import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import {
  eventText,
  json,
  type Received,
  type ReplyParts,
  sendStream,
  vllmChunks,
  vllmReply,
} from '../../engines/scripted-server.ts';
import { ask } from '../dialect-bodies.ts';
import { Rig, type Sent, until, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
let key: string;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
  key = rig.key();
});
afterEach(() => rig.stop());

const calls = [
  { id: 'call_1', name: 'sh', arguments: '{"command":"ls"}' },
  { id: 'call_2', name: 'sh', arguments: '{"command":"pwd"}' },
];
const parts: ReplyParts = {
  reasoning: 'Hmm, wait.',
  content: 'Let me look.',
  toolCalls: calls,
  responseIds: [1, 2, 3, 4, 5, 6, 7, 8, 9, 2],
};

/** An engine that streams its reply chunk by chunk and sends only as many chunks as the test requests. */
class SteppedEngine {
  private received!: Received;
  private chunks: unknown[] = [];
  private readonly began: Promise<void>;

  constructor(over: ReplyParts = parts) {
    this.began = new Promise((resolve) => {
      rig.server.onChat = (received) => {
        this.received = received;
        this.chunks = [...vllmChunks(received, over), '[DONE]'];
        received.response.writeHead(200, { 'content-type': 'text/event-stream' });
        received.response.flushHeaders();
        resolve();
      };
    });
  }

  async send(count = this.chunks.length): Promise<void> {
    await this.began;
    const text = this.chunks.splice(0, count).map(eventText).join('');
    if (this.chunks.length === 0) this.received.response.end(text);
    else this.received.response.write(text);
  }

  async rest(): Promise<void> {
    await this.began;
    return this.send();
  }

  async breakOff(): Promise<void> {
    await this.began;
    this.received.response.destroy();
  }

  get closed(): Promise<void> {
    return this.began.then(() => new Promise((resolve) => void this.received.response.once('close', resolve)));
  }
}

function send(name: (typeof DIALECTS)[number]['name'], text = 'hi', headers: Record<string, string> = {}): Sent {
  const { path, body } = ask(name, { stream: true, text });
  return rig.send({ path: `/s/${key}${path}`, body, headers });
}

/** Replaces ids and times in a response body, which differ from call to call, so that replies can be compared. */
function plain(body: string): string {
  return body
    .replaceAll(/(cpl|call)_[0-9a-z]{26}/g, '$1')
    .replaceAll(/"thoughtSignature":"[^"]*"/g, '')
    .replaceAll(/"created(_at)?":\d+/g, '"created":0')
    .replaceAll(/"(createTime|responseId)":"[^"]*"/g, '');
}

describe.each(DIALECTS.map(({ name }) => name))('a stream of %s', (name) => {
  it('begins with the first delta and sends its end only when the record is durable', async () => {
    const session = await rig.open({ key });
    const engine = new SteppedEngine();
    rig.journal.hold = true;
    const sent = send(name);
    // The virtual clock does not advance, so the time limit after which headers are sent without a delta is not reached. Only a delta can
    // open the stream.
    await engine.send(2);
    expect(await sent.firstBytes).toContain('Hmm, ');
    const ended = sent.reply.then(() => true);
    await engine.rest();
    await rig.journal.waiting();
    const early = sent.received();
    for (const last of [
      '[DONE]',
      'message_stop',
      'message_delta',
      'finish_reason":"tool',
      'response.completed',
      'finishReason":"STOP',
    ]) {
      expect(early).not.toContain(last);
    }
    expect(await Promise.race([ended, Promise.resolve(false)])).toBe(false);
    expect(session.completionCount).toBe(0);
    rig.journal.held[0]?.commit();
    const { status, body } = await sent.reply;
    expect(status).toBe(200);
    expect(body.startsWith(early)).toBe(true);
    expect(session.completions()[0]).toMatchObject({ undelivered: false, finishReason: 'tool_calls' });
  });

  it('equals the stream that is encoded from the whole reply', async () => {
    await rig.open({ key });
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, parts));
    const whole = await send(name).reply;
    rig.server.onChat = (received) => sendStream(received.response, vllmChunks(received, parts));
    const streamed = await send(name, 'hi!').reply;
    expect(plain(streamed.body)).toBe(plain(whole.body));
  });

  it('contains the error, is not recorded and is requested once when it breaks off', async () => {
    const session = await rig.open({ key });
    const engine = new SteppedEngine();
    const sent = send(name);
    await engine.send(3);
    expect(await sent.firstBytes).toContain('Hmm');
    await engine.breakOff();
    const { status, body } = await sent.reply;
    expect(status).toBe(200);
    expect(body).toMatch(/broke off/);
    expect(session).toMatchObject({ completionCount: 0, failures: { ofMain: { code: 'engine_error' } } });
    expect(rig.journal.written).toEqual([]);
    expect(rig.server.chats).toHaveLength(1);
  });

  it('is recorded as abandoned and fails for the harness when the engine aborts it', async () => {
    const session = await rig.open({ key });
    rig.server.onChat = (received) => sendStream(received.response, vllmChunks(received, { finish: 'abort' }));
    const { body } = await send(name).reply;
    expect(body).toMatch(/broke off/);
    expect(session.completions()).toMatchObject([{ finishReason: 'abort', abandoned: true, undelivered: true }]);
  });

  it('is sent from its beginning to a retry that joins late', async () => {
    const session = await rig.open({ key });
    const engine = new SteppedEngine();
    const first = send(name);
    await engine.send(4);
    await first.firstBytes;
    await until(() => first.received().includes('look') || first.received().includes('Let m'));
    const second = send(name, 'hi', { 'x-stainless-retry-count': '1' });
    expect(await second.firstBytes).toContain('Hmm, wait.');
    await engine.rest();
    const [one, two] = await Promise.all([first.reply, second.reply]);
    expect(two.status).toBe(200);
    for (const text of ['pwd', 'ls']) for (const { body } of [one, two]) expect(body).toContain(text);
    expect(rig.server.chats).toHaveLength(1);
    expect(session.completions()).toMatchObject([{ undelivered: false }]);
  });
});

describe('a stream of many deltas', () => {
  it('contains each piece once when it arrives token by token', async () => {
    await rig.open({ key });
    const engine = new SteppedEngine();
    const sent = send('openai_chat');
    for (const piece of ['Hmm, ', 'wait.', 'Let me', ' look.', '_0', 'comman', '"ls', '_1']) {
      while (!sent.received().includes(piece)) {
        await engine.send(1);
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
    await engine.rest();
    const events = (await sent.reply).body.split('\n\n').filter((line) => line.startsWith('data: {'));
    const deltas = events.map((line) => JSON.parse(line.slice('data: '.length)).choices[0]?.delta ?? {});
    expect(deltas.map(({ reasoning_content = '' }) => reasoning_content).join('')).toBe('Hmm, wait.');
    expect(deltas.map(({ content = '' }) => content).join('')).toBe('Let me look.');
    for (const [index, call] of calls.entries()) {
      const own = deltas.flatMap(({ tool_calls = [] }) => tool_calls).filter((piece) => piece.index === index);
      expect(own.map((piece) => piece.function.arguments).join('')).toBe(call.arguments);
    }
  });

  it('has heartbeats only while no delta arrives', async () => {
    await rig.open({ key });
    const engine = new SteppedEngine();
    const sent = send('anthropic');
    await rig.server.arrived(1);
    clock.advance(1_000);
    await sent.headers;
    await engine.send(2);
    await sent.firstBytes;
    clock.advance(9_000);
    await engine.send(1);
    await until(() => sent.received().includes('wait.'));
    clock.advance(9_999);
    expect(sent.received()).not.toContain('ping');
    clock.advance(1);
    await until(() => sent.received().includes('event: ping'));
    await engine.rest();
    expect((await sent.reply).body.match(/event: ping\n/g)).toHaveLength(1);
  });

  it('ends the engine call after the grace period and records nothing when its client disconnects', async () => {
    const session = await rig.open({ key });
    const engine = new SteppedEngine();
    const sent = send('openai_chat');
    await engine.send(3);
    await sent.firstBytes;
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await noticed;
    const closed = engine.closed;
    clock.advance(ABANDON_GRACE_MS);
    await closed;
    await until(() => session.failures.ofMain === null);
    expect(session.completionCount).toBe(0);
    expect(rig.journal.written).toEqual([]);
  });

  it('contains an error when ids are missing, and its repeat is sampled completely', async () => {
    const session = await rig.open({ key });
    rig.server.onChat = (received) => {
      if (received.body.stream !== true) return json(received.response, 200, vllmReply(received));
      const chunks = vllmChunks(received) as { choices: Record<string, unknown>[] }[];
      const lossy = chunks.map((chunk, i) =>
        i === 2 ? { ...chunk, choices: [{ ...chunk.choices[0], token_ids: [] }] } : chunk,
      );
      sendStream(received.response, lossy);
    };
    const failed = await send('openai_chat').reply;
    expect(failed.body).toContain('token_ids has 2 ids');
    expect((await send('openai_chat').reply).body).toContain('Hello.');
    expect(session).toMatchObject({ completionCount: 1, failures: { ofMain: null } });
    expect(rig.engines.info()).toMatchObject([{ streaming: false }]);
  });

  it("reports the engine's numbers as usage", async () => {
    await rig.open({ key });
    rig.server.onChat = (received) => sendStream(received.response, vllmChunks(received, parts));
    const { body } = await send('anthropic').reply;
    expect(body).toContain('"usage":{"input_tokens":4,');
    expect(body).toContain(
      '"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":10}',
    );
  });
});
