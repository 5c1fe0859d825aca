// Streams to harnesses in tokens mode, from a scripted vLLM server that streams ids and parses incomplete replies.
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { eventText, json, type Received, type ScriptedServer } from '../../engines/scripted-server.ts';
import { DERENDER, GENERATE, type Json, serveTokens } from '../../engines/vllm/scripted-tokens.ts';
import { ask } from '../dialect-bodies.ts';
import { Rig, type Sent, until, WatchedClock } from '../rig.ts';

const CLOSE = 2;
const CALL = 90;
const THINKING = Array.from({ length: 40 }, (_, i) => 100 + i);
const TEXT = Array.from({ length: 40 }, (_, i) => 200 + i);
const REPLY = [...THINKING, ...TEXT, CALL, CLOSE];

/** The text of one sampled id. Ids from 100 are thinking, ids from 200 are text. */
const textOf = (id: number): string => `${id < 200 ? 'Denken' : 'Wort 語😀'}${id} `;

/** The message that the server's parsers make from ids. It has a tool call when the ids contain `CALL`. */
function messageOf(ids: readonly number[]): Json {
  const reasoning = ids.filter((id) => id >= 100 && id < 200).map(textOf);
  const content = ids.filter((id) => id >= 200).map(textOf);
  const call = { id: 'call_1', type: 'function', function: { name: 'sh', arguments: '{"command":"ls"}' } };
  return {
    role: 'assistant',
    reasoning: reasoning.join('') || null,
    content: content.join('') || null,
    ...(ids.includes(CALL) ? { tool_calls: [call] } : {}),
  };
}

/** An engine that streams ids and sends only as many of them as the test requests. */
class SteppedIds {
  readonly prompts: number[][] = [];
  aborted = 0;
  /** Whether the message of the complete reply differs from what the parsers returned for the incomplete reply. */
  contradicts = false;
  finishReason = 'stop';
  private received!: Received;
  private rest: number[] = [...REPLY];
  private began!: Promise<void>;

  /** `parsesChunks` is whether the server parses incomplete replies; without it, replies are not streamed. */
  constructor(server: ScriptedServer, parsesChunks = true) {
    serveTokens(server, { derendered: (reply, received) => this.derendered(reply, received) });
    const chunked = server.routes[DERENDER] as (received: Received) => void;
    server.routes[DERENDER] = (received) => {
      if (received.body.stream !== true) return chunked(received);
      if (!parsesChunks) return json(received.response, 501, { error: { message: 'Not implemented' } });
      type Body = { generate_chunk: { choices: [{ token_ids: number[] }] } };
      const ids = (received.body as Body).generate_chunk.choices[0].token_ids;
      const chunk = {
        id: String(received.headers['x-request-id'] ?? ''),
        model: 'toy',
        choices: [{ index: 0, delta: messageOf(ids), finish_reason: null }],
      };
      json(received.response, 200, { chunk, stream_state: {} });
    };
    this.awaitCall(server);
  }

  private awaitCall(server: ScriptedServer): void {
    this.began = new Promise((resolve) => {
      server.routes[GENERATE] = (received) => {
        this.received = received;
        this.rest = [...REPLY];
        this.prompts.push(received.body.token_ids as number[]);
        if (received.body.stream !== true) return json(received.response, 200, this.whole());
        received.response.writeHead(200, { 'content-type': 'text/event-stream' });
        received.response.flushHeaders();
        received.response.on('close', () => this.aborted++);
        resolve();
      };
    });
  }

  /** Sends the next `count` ids in one chunk; the last chunk ends the reply. */
  async send(count: number): Promise<void> {
    await this.began;
    const isFirst = this.rest.length === REPLY.length;
    const ids = this.rest.splice(0, count);
    const isLast = this.rest.length === 0;
    const chunk = { ...this.head(), ...(isFirst ? this.promptIds() : {}), choices: [this.choice(ids, isLast)] };
    const { response } = this.received;
    response.write(eventText(chunk));
    if (!isLast) return;
    response.write(eventText({ ...this.head(), choices: [], usage: this.usage() }));
    response.end(eventText('[DONE]'));
  }

  async breakOff(): Promise<void> {
    await this.began;
    this.received.response.destroy();
  }

  get closed(): Promise<void> {
    return this.began.then(() => new Promise((resolve) => void this.received.response.once('close', resolve)));
  }

  private whole(): Json {
    return { ...this.head(), ...this.promptIds(), choices: [this.choice(REPLY, true)], usage: this.usage() };
  }

  private head(): Json {
    return { request_id: `generate-tokens-${String(this.received.headers['x-request-id'])}` };
  }

  private promptIds(): Json {
    return { prompt_token_ids: this.received.body.token_ids };
  }

  private usage(): Json {
    return { prompt_tokens: this.prompts.at(-1)?.length, completion_tokens: REPLY.length };
  }

  private choice(ids: readonly number[], isLast: boolean): Json {
    const content = ids.map((id) => ({ token_id: id, logprob: -0.5, rank: 1, top_logprobs: [] }));
    const finish = isLast ? { finish_reason: this.finishReason, stop_reason: null } : { finish_reason: null };
    return { index: 0, token_ids: ids, logprobs: { content }, ...finish };
  }

  private derendered(reply: Json, received: Received): unknown {
    type Body = { generate_response: { choices: [{ token_ids: number[] }] } };
    const ids = (received.body as Body).generate_response.choices[0].token_ids;
    const message = this.contradicts && ids.includes(CALL) ? { content: 'Something else.' } : messageOf(ids);
    return { ...reply, choices: [{ index: 0, message, finish_reason: 'stop' }] };
  }
}

let rig: Rig;
let clock: WatchedClock;
let key: string;
let engine: SteppedIds;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock, undefined, (server) => {
    engine = new SteppedIds(server);
  });
  key = rig.key();
});
afterEach(() => rig.stop());

function send(name: (typeof DIALECTS)[number]['name'], stream = true, headers: Record<string, string> = {}): Sent {
  const { path, body } = ask(name, { stream });
  return rig.send({ path: `/s/${key}${path}`, body, headers });
}

const TEXT_KEYS = new Set(['content', 'reasoning_content', 'text', 'thinking', 'delta', 'arguments', 'partial_json']);

/** Joins all texts of a stream's events in their order, however they are divided into events. */
function textsOf(body: string): string {
  const texts: string[] = [];
  const collect = (value: unknown, name: string): void => {
    if (typeof value === 'string' && TEXT_KEYS.has(name)) texts.push(value);
    else if (typeof value === 'object' && value !== null) {
      for (const [key, inner] of Object.entries(value)) collect(inner, key);
    }
  };
  for (const line of body.split('\n')) if (line.startsWith('data: {')) collect(JSON.parse(line.slice(6)), '');
  return texts.join('');
}

const thinking = THINKING.map(textOf).join('');

describe.each(DIALECTS.map(({ name }) => name))('a stream of %s in tokens mode', (name) => {
  it('shows thinking and text while the engine samples, and ends when the record is durable', async () => {
    const session = await rig.open({ key });
    rig.journal.hold = true;
    const sent = send(name);
    await engine.send(20);
    expect(await sent.firstBytes).toContain('Denken100 ');
    await engine.send(30);
    await until(() => sent.received().includes('Wort 語😀205'));
    expect(sent.received()).not.toContain('Wort 語😀210');
    await engine.send(REPLY.length);
    await rig.journal.waiting();
    expect(sent.received()).not.toContain('"sh"');
    rig.journal.held[0]?.commit();
    const { status, body } = await sent.reply;
    expect(status).toBe(200);
    expect(body).toContain('"sh"');
    expect([...(session.completions()[0]?.responseIds ?? [])]).toEqual(REPLY);
    expect(session.completions()[0]).toMatchObject({ undelivered: false, finishReason: 'tool_calls' });
  });

  it('contains in sum what the stream of a whole reply contains', async () => {
    await rig.open({ key });
    const growing = send(name);
    for (let count = 0; count < REPLY.length; count += 7) {
      await engine.send(7);
      await new Promise((resolve) => setImmediate(resolve));
    }
    const streamed = (await growing.reply).body;
    const wholeRig = await Rig.start(clock, undefined, (server) => void new SteppedIds(server, false));
    try {
      await wholeRig.open({ key });
      const { path, body } = ask(name, { stream: true });
      const whole = await wholeRig.send({ path: `/s/${key}${path}`, body }).reply;
      expect(textsOf(streamed)).toBe(textsOf(whole.body));
      expect(textsOf(streamed)).toContain(thinking);
    } finally {
      await wholeRig.stop();
    }
  });

  it('contains the error, is not recorded and is requested once when it breaks off after a delta', async () => {
    const session = await rig.open({ key });
    const sent = send(name);
    await engine.send(30);
    expect(await sent.firstBytes).toContain('Denken');
    await engine.breakOff();
    const { status, body } = await sent.reply;
    expect(status).toBe(200);
    expect(body).toMatch(/broke off/);
    expect(session).toMatchObject({ completionCount: 0, failures: { ofMain: { code: 'engine_error' } } });
    expect(engine.prompts).toHaveLength(1);
  });

  it('is sent from its beginning to a retry that joins late', async () => {
    await rig.open({ key });
    const first = send(name);
    await engine.send(50);
    await first.firstBytes;
    const second = send(name, true, { 'x-stainless-retry-count': '1' });
    expect(await second.firstBytes).toContain('Denken100 ');
    await engine.send(REPLY.length);
    const [one, two] = await Promise.all([first.reply, second.reply]);
    for (const { body } of [one, two]) expect(textsOf(body)).toContain(thinking);
    expect(engine.prompts).toHaveLength(1);
  });
});

describe('a stream in tokens mode', () => {
  it('is sampled once more when it breaks off before the first delta', async () => {
    const session = await rig.open({ key });
    const sent = send('openai_chat');
    await engine.send(1);
    const paused = clock.scheduled(100);
    await engine.breakOff();
    await paused;
    clock.advance(100);
    await until(() => engine.prompts.length === 2);
    await engine.send(REPLY.length);
    await sent.reply;
    expect(session.completionCount).toBe(1);
  });

  it('ends the engine call after the grace period and records nothing when its client disconnects', async () => {
    const session = await rig.open({ key });
    const sent = send('openai_chat');
    await engine.send(30);
    await sent.firstBytes;
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await noticed;
    const { closed } = engine;
    clock.advance(ABANDON_GRACE_MS);
    await closed;
    await until(() => session.runningCalls === 0);
    expect(session.completionCount).toBe(0);
    expect(rig.journal.written).toEqual([]);
  });

  it('shows only thinking for a request with tools when the parser does not keep text before a tool call', async () => {
    const session = await rig.open({ key });
    const { path, body } = ask('openai_chat', { stream: true });
    const tools = [{ type: 'function', function: { name: 'sh', parameters: { type: 'object' } } }];
    // When an engine is registered, floe probes whether its parser keeps text before a tool call. The scripted parser does not return the
    // probe's text, so floe assumes that text is not kept.
    const sent = rig.send({ path: `/s/${key}${path}`, body: { ...body, tools } });
    await engine.send(60);
    await until(() => sent.received().includes('Denken139'));
    expect(sent.received()).not.toContain('Wort');
    await engine.send(REPLY.length);
    expect((await sent.reply).body).toContain('Wort 語😀239');
    expect(session.completionCount).toBe(1);
  });

  it('fails once when the complete message contradicts what was shown, and later replies arrive whole', async () => {
    const session = await rig.open({ key });
    engine.contradicts = true;
    const sent = send('openai_chat');
    await engine.send(30);
    await sent.firstBytes;
    await engine.send(REPLY.length);
    expect((await sent.reply).body).toContain('does not begin with the part');
    expect(session.completionCount).toBe(0);
    const again = await send('openai_chat').reply;
    expect(again.body).toContain('Something else.');
    expect(session.completionCount).toBe(1);
  });

  it('continues after what was shown when an update aborts the reply', async () => {
    const session = await rig.open({ key });
    engine.finishReason = 'abort';
    const sent = send('openai_chat');
    await engine.send(30);
    await sent.firstBytes;
    await engine.send(REPLY.length);
    await until(() => engine.prompts.length === 2);
    expect(engine.prompts[1]?.slice(engine.prompts[0]?.length)).toEqual(REPLY);
    await sent.reply;
    expect(session.completionCount).toBe(1);
  });
});
