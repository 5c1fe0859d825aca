import { connect } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { type FaultInput, type SimServer, startSim } from '../src/index.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';
import { assembled, type Chunk, events, post } from './sse.ts';

const vocabulary = bundledVocabulary();
const scenarios = [
  {
    name: 'caller',
    rules: [{ reply: [{ think: 6 }, { call: { tool: 'bash', arguments: { command: 'ls' } } }] }],
  },
];
const body = {
  messages: [{ role: 'user', content: 'Go.' }],
  tools: [{ type: 'function', function: { name: 'bash' } }],
  return_token_ids: true,
  logprobs: true,
  stream_options: { include_usage: true },
  seed: 3,
};

const running: SimServer[] = [];
async function start(faults: FaultInput[]): Promise<SimServer> {
  const sim = await startSim({ scenarios, faults, seed: 11 });
  running.push(sim);
  return sim;
}
afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

const send = (sim: SimServer, more: object = {}, signal?: AbortSignal): Promise<Response> =>
  fetch(`${sim.url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ ...body, ...more }),
    ...(signal === undefined ? {} : { signal }),
  });
const reply = async (sim: SimServer): Promise<Chunk> => (await (await send(sim)).json()) as Chunk;
const streamed = async (sim: SimServer): Promise<Chunk[]> => events(await (await send(sim, { stream: true })).text());

describe('a fault', () => {
  it.each([
    ['http_429', 429],
    ['http_500', 500],
    ['http_503', 503],
  ] as const)('%s replies %i before the first byte and samples nothing', async (kind, status) => {
    const sim = await start([{ kind }]);
    for (const stream of [false, true]) {
      const response = await send(sim, { stream });
      expect(response.status).toBe(status);
      expect(response.headers.get('retry-after')).toBe(status === 429 ? '1' : null);
      expect(((await response.json()) as Chunk).error?.code).toBe(status);
    }
    expect(sim.ledger.total).toBe(0);
  });

  it('reset_before resets the connection before a reply', async () => {
    const sim = await start([{ kind: 'reset_before' }]);
    await expect(send(sim)).rejects.toThrow('fetch failed');
    await expect(send(sim, { stream: true })).rejects.toThrow('fetch failed');
    expect(sim.ledger.total).toBe(0);
  });

  it('reset_mid resets the connection in the middle of the reply, which aborts a stream', async () => {
    const sim = await start([{ kind: 'reset_mid', after_tokens: 4 }]);
    const stream = await send(sim, { stream: true });
    expect(stream.status).toBe(200);
    await expect(stream.text()).rejects.toThrow();
    await sim.engine.idle();
    expect(sim.ledger.entries()[0]).toMatchObject({ finish_reason: 'abort', aborted_at: 4, faults: ['reset_mid'] });
    const plain = await send(sim);
    expect(plain.status).toBe(200);
    await expect(plain.text()).rejects.toThrow();
  });

  it('stall sends nothing more after some tokens until the client disconnects', async () => {
    const sim = await start([{ kind: 'stall', after_tokens: 5 }]);
    const controller = new AbortController();
    const response = await send(sim, { stream: true }, controller.signal);
    let text = '';
    let count = 0;
    const decoder = new TextDecoder();
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      text += decoder.decode(chunk);
      count = events(text).flatMap(({ choices }) => choices[0]?.token_ids ?? []).length;
      if (count === 5) break;
    }
    expect(count).toBe(5);
    expect(sim.engine.running).toBe(1);
    controller.abort();
    await sim.engine.idle();
    expect(sim.ledger.entries()[0]).toMatchObject({ finish_reason: 'abort', aborted_at: 5 });
  });

  it('missing_ids leaves all ids out', async () => {
    const sim = await start([{ kind: 'missing_ids' }]);
    const plain = await reply(sim);
    expect(plain.prompt_token_ids).toBeNull();
    expect(plain.choices[0]?.token_ids).toBeNull();
    const text = await (await send(sim, { stream: true })).text();
    expect(text).not.toContain('token_ids');
  });

  it('logprobs_length sends one logprob fewer than ids', async () => {
    const sim = await start([{ kind: 'logprobs_length' }]);
    const plain = (await reply(sim)).choices[0];
    expect(plain?.logprobs?.content.length).toBe((plain?.token_ids?.length ?? 0) - 1);
    const whole = assembled(await streamed(sim));
    expect(whole.logprobs?.content.length).toBe((whole.token_ids?.length ?? 0) - 1);
  });

  it('logprob_nan sends the invalid JSON NaN, and logprob_null sends null', async () => {
    const nan = await start([{ kind: 'logprob_nan' }]);
    for (const stream of [false, true]) expect(await (await send(nan, { stream })).text()).toContain('"logprob":NaN');
    const none = await start([{ kind: 'logprob_null' }]);
    expect((await reply(none)).choices[0]?.logprobs?.content[0]?.logprob).toBeNull();
    expect(assembled(await streamed(none)).logprobs?.content[0]?.logprob).toBeNull();
  });

  it('logprob_positive sends a logprob above zero', async () => {
    const sim = await start([{ kind: 'logprob_positive' }]);
    expect((await reply(sim)).choices[0]?.logprobs?.content[0]?.logprob).toBe(0.5);
    expect(assembled(await streamed(sim)).logprobs?.content[0]?.logprob).toBe(0.5);
  });

  it('usage_mismatch reports more tokens than were sent', async () => {
    const sim = await start([{ kind: 'usage_mismatch' }]);
    const plain = await reply(sim);
    expect(plain.usage?.completion_tokens).toBe((plain.choices[0]?.token_ids?.length ?? 0) + 3);
    const chunks = await streamed(sim);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe((assembled(chunks).token_ids?.length ?? 0) + 3);
  });

  it('foreign_ids sends as many ids of an earlier call as were sampled', async () => {
    const sim = await start([{ kind: 'foreign_ids', on_calls: [2, 3] }]);
    await send(sim, { messages: [{ role: 'user', content: 'Another prompt.' }], seed: 9 }).then((done) => done.text());
    const [other] = sim.ledger.entries();
    const lie = await reply(sim);
    expect(lie.prompt_token_ids).toEqual(other?.prompt_ids);
    expect(lie.choices[0]?.token_ids).toEqual(other?.response_ids);
    const [, truth] = sim.ledger.entries();
    expect(truth?.response_ids).not.toEqual(other?.response_ids);
    expect(truth?.faults).toEqual(['foreign_ids']);
  });

  it('error_body_200 sends an error object with status 200', async () => {
    const sim = await start([{ kind: 'error_body_200' }]);
    expect((await reply(sim)).error?.type).toBe('InternalServerError');
    expect((await streamed(sim))[0]?.error?.type).toBe('InternalServerError');
    expect(sim.ledger.total).toBe(0);
  });

  it('garbage sends a body that is not valid JSON', async () => {
    const sim = await start([{ kind: 'garbage' }]);
    await expect(reply(sim)).rejects.toThrow(SyntaxError);
    await expect(streamed(sim)).rejects.toThrow(SyntaxError);
  });

  it('malformed_tool_call samples a call that is not valid JSON and stays in the content', async () => {
    const sim = await start([{ kind: 'malformed_tool_call' }]);
    const choice = (await reply(sim)).choices[0];
    expect(choice?.message).not.toHaveProperty('tool_calls');
    expect(choice?.message.content).toBe(
      '\n\n<tool_call>\n{"name": "bash", "arguments": {"command":"ls"}\n</tool_call>',
    );
    expect(choice?.finish_reason).toBe('stop');
    const [entry] = sim.ledger.entries();
    expect(choice?.token_ids).toEqual(entry?.response_ids);
    const expected = sim.oracle(
      entry?.prompt_ids ?? [],
      entry?.response_ids ?? [],
      'v0',
      entry?.params ?? (undefined as never),
      { malformedCalls: true },
    );
    for (const [index, raw] of expected.raw.entries())
      expect(raw).toBeCloseTo(entry?.raw_logprobs[index] ?? Number.NaN, 9);
  });

  it('abort ends the reply early with the finish reason abort', async () => {
    const sim = await start([{ kind: 'abort', after_tokens: 3 }]);
    const choice = (await reply(sim)).choices[0];
    expect(choice?.finish_reason).toBe('abort');
    expect(choice?.token_ids?.length).toBe(3);
    expect(sim.ledger.entries()[0]?.aborted_at).toBe(3);
  });
});

describe('a fault of streams', () => {
  it('stream_lost_ids removes the ids of chunks whose text the parser does not show', async () => {
    const sim = await start([{ kind: 'stream_lost_ids' }]);
    const chunks = await streamed(sim);
    const [entry] = sim.ledger.entries();
    const sent = chunks.flatMap(({ choices }) => choices[0]?.token_ids ?? []);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(entry?.response_ids.length);
    expect(sent.length).toBeLessThan(entry?.response_ids.length ?? 0);
    expect(assembled(chunks).logprobs?.content.length).toBe(sent.length);
    // The fault `stream_lost_ids` removed the ids whose text the parser hides: delimiters, and the beginning of a tool call before its
    // arguments.
    expect(vocabulary.decode(sent)).not.toContain('<think>');
    expect(assembled(chunks).message.tool_calls[0]?.function.arguments).toBe('{"command":"ls"}');
    expect(entry?.faults).toEqual(['stream_lost_ids']);
    expect((await reply(sim)).choices[0]?.token_ids).toEqual(entry?.response_ids);
  });

  it('stream_lost_ids removes the last ids when the parser shows all text', async () => {
    const sim = await startSim({ faults: [{ kind: 'stream_lost_ids' }] });
    running.push(sim);
    const whole = assembled(await streamed(sim));
    const [entry] = sim.ledger.entries();
    expect(whole.token_ids).toEqual(entry?.response_ids.slice(0, -1));
    expect(whole.finish_reason).toBe('stop');
    const cut = await send(sim, { stream: true, max_tokens: 3 });
    expect(assembled(events(await cut.text())).token_ids?.length).toBe(2);
  });

  it('chunk_split splits the bytes inside lines and characters and changes nothing else', async () => {
    const emoji = [{ name: 's', rules: [{ reply: [{ text: 'Größe 😀 ✓' }] }] }];
    const sim = await startSim({ scenarios: emoji, faults: [{ kind: 'chunk_split', on_calls: [2] }] });
    running.push(sim);
    const path = '/v1/chat/completions';
    const more = { stream: true, stream_interval: 100, n: 2 };
    const whole = Buffer.concat(await rawPieces(sim, path, { ...body, ...more }));
    const pieces = await rawPieces(sim, path, { ...body, ...more });
    const same = (text: string): unknown => events(text).map(({ choices, usage }) => ({ choices, usage }));
    const byChoice = (bytes: Buffer, index: number): unknown => assembled(events(bytes.toString()), index);
    expect(same(Buffer.concat(pieces).toString())).toHaveLength((same(whole.toString()) as unknown[]).length);
    for (const index of [0, 1]) expect(byChoice(Buffer.concat(pieces), index)).toEqual(byChoice(whole, index));
    expect(pieces.filter((piece) => piece.toString() === 'da').length).toBe(events(whole.toString()).length + 1);
    // A piece that begins with a UTF-8 continuation byte (10xxxxxx) shows that the fault split a character.
    expect(pieces.filter((piece) => ((piece[0] ?? 0) & 0xc0) === 0x80).length).toBeGreaterThan(4);
  });
});

/** Returns the HTTP chunks in which the body of a reply arrived. */
async function rawPieces(sim: SimServer, path: string, request: object): Promise<Buffer[]> {
  const text = JSON.stringify(request);
  const socket = connect(Number(new URL(sim.url).port), '127.0.0.1');
  socket.write(
    `POST ${path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
  const received: Buffer[] = [];
  for await (const bytes of socket) received.push(bytes as Buffer);
  const all = Buffer.concat(received);
  const pieces: Buffer[] = [];
  for (let at = all.indexOf('\r\n\r\n') + 4; ; ) {
    const lineEnd = all.indexOf('\r\n', at);
    const size = Number.parseInt(all.toString('latin1', at, lineEnd), 16);
    if (!(size > 0)) return pieces;
    pieces.push(all.subarray(lineEnd + 2, lineEnd + 2 + size));
    at = lineEnd + 2 + size + 2;
  }
}

describe('a fault of call ids and prompts', () => {
  it("duplicate_call_ids repeats the ids of the session's previous reply", async () => {
    const sim = await start([{ kind: 'duplicate_call_ids', on_calls: [3, 4, 5] }]);
    const send = async (session: string, stream = false): Promise<string | undefined> => {
      const response = await post(`${sim.url}/v1/chat/completions`, { ...body, stream }, { 'x-session-id': session });
      const choice = stream ? assembled(events(await response.text())) : ((await response.json()) as Chunk).choices[0];
      return choice?.message.tool_calls[0]?.id;
    };
    const first = await send('a');
    const other = await send('b');
    expect(first).toMatch(/^chatcmpl-tool-[0-9a-f]{32}$/);
    expect(other).not.toBe(first);
    expect(await send('a')).toBe(first);
    expect(await send('a', true)).toBe(first);
    expect(await send('new')).not.toBe(first);
    expect(await send('a')).not.toBe(first);
    expect(sim.ledger.entries().map((entry) => entry.faults)).toEqual([
      [],
      [],
      ['duplicate_call_ids'],
      ['duplicate_call_ids'],
      ['duplicate_call_ids'],
      [],
    ]);
  });

  it('http_400_context refuses the call as an overlong prompt and samples nothing', async () => {
    const sim = await start([{ kind: 'http_400_context' }]);
    for (const path of ['/v1/chat/completions', '/v1/completions']) {
      const response = await post(`${sim.url}${path}`, path.includes('chat') ? body : { prompt: 'x' });
      expect(response.status).toBe(400);
      const { error } = (await response.json()) as Chunk;
      expect(error).toMatchObject({ type: 'BadRequestError', param: 'input_tokens', code: 400 });
      expect(error?.message).toMatch(
        /^This model's maximum context length is 32768 tokens\. However, your prompt contains/,
      );
    }
    expect(sim.ledger.total).toBe(0);
  });
});

describe('the calls that a fault hits', () => {
  const statuses = async (sim: SimServer, count: number, headers: Record<string, string> = {}): Promise<number[]> => {
    const seen: number[] = [];
    for (let i = 0; i < count; i++) {
      const response = await post(`${sim.url}/v1/chat/completions`, body, headers);
      await response.text();
      seen.push(response.status);
    }
    return seen;
  };

  it('are selected by number, by count and by session', async () => {
    const sim = await start([{ kind: 'http_500', on_calls: [2, 4] }]);
    expect(await statuses(sim, 4)).toEqual([200, 500, 200, 500]);
    sim.setFaults([{ kind: 'http_503', times: 2 }]);
    expect(await statuses(sim, 3)).toEqual([503, 503, 200]);
    sim.setFaults([{ kind: 'http_429', session_id: 'bad' }]);
    expect(await statuses(sim, 1, { 'x-session-id': 'good' })).toEqual([200]);
    expect(await statuses(sim, 1, { 'x-session-id': 'bad' })).toEqual([429]);
  });

  it('are selected by probability, equally for the same seed', async () => {
    const faults: FaultInput[] = [{ kind: 'http_500', probability: 0.4 }];
    const first = await statuses(await start(faults), 60);
    expect(await statuses(await start(faults), 60)).toEqual(first);
    const hit = first.filter((status) => status === 500).length;
    expect(hit).toBeGreaterThan(12);
    expect(hit).toBeLessThan(36);
  });

  it('are set, read and cleared over HTTP, which refuses unknown kinds', async () => {
    const sim = await start([]);
    const url = `${sim.url}/__sim/faults`;
    expect((await post(url, { faults: [{ kind: 'http_500' }] })).status).toBe(200);
    expect(await statuses(sim, 1)).toEqual([500]);
    const listed = (await (await fetch(url)).json()) as { faults: { kind: string; fired: number }[] };
    expect(listed.faults).toMatchObject([{ kind: 'http_500', fired: 1 }]);
    expect((await fetch(url, { method: 'DELETE' })).status).toBe(200);
    expect(await statuses(sim, 1)).toEqual([200]);
    const refused = await post(url, { faults: [{ kind: 'explode' }] });
    expect(refused.status).toBe(400);
    expect(((await refused.json()) as Chunk).error?.message).toContain('faults.0.kind');
    expect(() => sim.setFaults([{ kind: 'explode' } as never])).toThrow(/faults\.0\.kind/);
  });
});
