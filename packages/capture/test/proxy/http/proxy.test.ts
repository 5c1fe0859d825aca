import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { json, vllmReply } from '../../engines/scripted-server.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
beforeEach(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.stop());

describe('a call', () => {
  it('is answered in the dialect of its request and recorded with exact tokens', async () => {
    const progress: [number, number][] = [];
    const key = rig.key();
    const session = await rig.open({ key, onProgress: (turns, tokens) => progress.push([turns, tokens]) });
    const reply = await rig.chat(key).reply;
    expect(reply.status).toBe(200);
    expect(JSON.parse(reply.body)).toMatchObject({
      object: 'chat.completion',
      model: 'policy',
      choices: [{ message: { role: 'assistant', content: 'Hello.' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 },
    });
    const messages = await rig.send({
      path: '/v1/messages?beta=true',
      headers: { 'x-api-key': key, 'anthropic-version': '2023-06-01' },
      body: { ...chatBody(), max_tokens: 10, stream: true },
    }).reply;
    expect(messages.body).toMatch(/^event: message_start\n/);
    expect(messages.body).toMatch(/event: message_stop\ndata: {"type":"message_stop"}\n\n$/);
    const [first, second] = session.completions();
    expect(first).toMatchObject({
      sessionId: 'ses_1',
      index: 0,
      dialect: 'openai_chat',
      callKind: 'main',
      thread: 'main',
      model: 'toy',
      undelivered: false,
      abandoned: false,
      auxiliary: false,
      request: { messages: [{ role: 'user', content: 'hi' }], messageTexts: ['{"role":"user","content":"hi"}'] },
    });
    expect([...(first?.promptIds ?? [])]).toEqual([1, 5, 6, 7]);
    expect(second).toMatchObject({ index: 1, dialect: 'anthropic' });
    expect(session).toMatchObject({ completionCount: 2, sampledTokens: 6, requests: 2, failures: { ofMain: null } });
    expect(progress).toEqual([
      [1, 3],
      [2, 6],
    ]);
    expect(rig.journal.written).toEqual(session.completions());
  });

  it('is sampled with the parameters of the task, the lower bound on tokens and a seed for each call', async () => {
    const key = rig.key();
    const sampling = samplingSchema.parse({ temperature: 0.8, max_tokens: 100, seed: 40 });
    const session = await rig.open({ key, sampleIndex: 2, sampling });
    await rig.chat(key, { temperature: 0, top_p: 0.95, max_tokens: 500, seed: 1 }).reply;
    await rig.chat(key, { max_completion_tokens: 60 }).reply;
    expect(rig.server.chats.map(({ body }) => [body.temperature, body.top_p, body.max_tokens, body.seed])).toEqual([
      [0.8, 1, 100, 42],
      [0.8, 1, 60, 100_042],
    ]);
    const [first] = session.completions();
    expect(first?.request.samplingAsked).toEqual({ temperature: 0, top_p: 0.95, max_tokens: 500, seed: 1 });
    expect(first?.request.sampling).toMatchObject({ temperature: 0.8, max_tokens: 100, seed: 42 });
  });

  it('is sampled at a temperature of 0 when the task sets it, whatever the harness requests', async () => {
    const key = rig.key();
    const session = await rig.open({ key, sampling: samplingSchema.parse({ temperature: 0 }) });
    for (const temperature of [undefined, 0, 0.7, 1]) await rig.chat(key, { temperature }).reply;
    expect(rig.server.chats.map(({ body }) => body.temperature)).toEqual([0, 0, 0, 0]);
    const recorded = session.completions().map(({ request }) => request.sampling.temperature);
    expect(recorded).toEqual([0, 0, 0, 0]);
  });

  it('is assigned to a sub-agent by its header, and is auxiliary when it requests a title', async () => {
    const key = rig.key();
    const session = await rig.open({ key, callRules: 'claude_code' });
    const path = `/s/${key}/v1/messages`;
    const body = { ...chatBody(), max_tokens: 5 };
    await rig.send({ path, body, headers: { 'x-claude-code-agent-id': 'a1' } }).reply;
    await rig.send({ path, body, headers: { 'x-claude-code-agent-id': 'a2' } }).reply;
    const schema = { type: 'object', properties: { title: { type: 'string' } } };
    await rig.send({ path, body: { ...body, output_config: { format: { type: 'json_schema', schema } } } }).reply;
    expect(session.completions().map(({ thread, callKind, auxiliary }) => [thread, callKind, auxiliary])).toEqual([
      ['a1', 'subagent', false],
      ['a2', 'subagent', false],
      ['main', 'title', true],
    ]);
  });

  it("is the main agent's in a session without rules for call kinds, whatever its headers and its schema are", async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const path = `/s/${key}/v1/responses`;
    const schema = { type: 'object', properties: { title: { type: 'string' } } };
    const body = { model: 'policy', input: 'hi', text: { format: { type: 'json_schema', name: 'answer', schema } } };
    const metadata = JSON.stringify({ request_kind: 'prewarm', thread_source: 'user' });
    await rig.send({ path, body, headers: { 'x-codex-turn-metadata': metadata } }).reply;
    expect(session.completions()).toMatchObject([{ thread: 'main', callKind: 'main', auxiliary: false }]);
  });

  it('returns the status and the message of an engine that refuses it', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const message = "This model's maximum context length is 10 tokens.";
    rig.server.onChat = ({ response }) => json(response, 400, { error: { message } });
    const reply = await rig.chat(key, { stream: true }).reply;
    expect(reply.status).toBe(400);
    expect(JSON.parse(reply.body).error).toMatchObject({ message, code: 'context_length_exceeded' });
    expect(session.failures.ofMain).toMatchObject({ code: 'engine_rejected', details: { context_overflow: true } });
    expect(session.completions()).toEqual([]);
  });

  it('is recorded, excluded and answered with an error when the engine aborts it; a repeat is sampled', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { finish: 'abort' }));
    expect((await rig.chat(key).reply).status).toBe(502);
    expect(session.completions()).toMatchObject([{ finishReason: 'abort', undelivered: true, abandoned: true }]);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    expect((await rig.chat(key).reply).status).toBe(200);
    expect(session.completions()).toHaveLength(2);
    expect(session.failures.ofMain).toBeNull();
  });

  it('is not made to count tokens, list models or answer probes', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const body = { ...chatBody(), max_tokens: 5 };
    const count = await rig.send({ path: `/s/${key}/v1/messages/count_tokens`, body }).reply;
    expect(JSON.parse(count.body)).toEqual({ input_tokens: 7 });
    const bare = { messages: chatBody().messages };
    const bareCount = await rig.send({ path: `/s/${key}/v1/messages/count_tokens`, body: bare }).reply;
    expect(bareCount.body).toBe(count.body);
    const models = await rig.send({ method: 'GET', path: `/s/${key}/v1/models` }).reply;
    expect(JSON.parse(models.body)).toMatchObject({ data: [{ id: 'policy', max_model_len: 4096 }] });
    const probed = await rig.send({ method: 'HEAD', path: `/s/${key}/` }).reply;
    expect([probed.status, probed.headers['content-length'], probed.headers['content-type']]).toEqual([
      200,
      '0',
      undefined,
    ]);
    expect((await rig.send({ method: 'HEAD', path: `/s/${key}/api/hello` }).reply).status).toBe(200);
    expect(rig.server.chats).toEqual([]);
    expect(session).toMatchObject({ requests: 5, completionCount: 0 });
  });
});

describe('keys', () => {
  it.each([
    ['the path', (key: string) => ({ path: `/s/${key}/v1/chat/completions` })],
    [
      'a bearer token',
      (key: string) => ({ path: '/v1/chat/completions', headers: { authorization: `Bearer ${key}` } }),
    ],
    ['x-api-key', (key: string) => ({ path: '/v1/chat/completions', headers: { 'x-api-key': key } })],
    ['x-goog-api-key', (key: string) => ({ path: '/v1/chat/completions', headers: { 'x-goog-api-key': key } })],
    ['the query', (key: string) => ({ path: `/v1/chat/completions?key=${key}` })],
    [
      'several places at once',
      (key: string) => ({ path: `/s/${key}/v1/chat/completions?key=${key}`, headers: { 'x-api-key': key } }),
    ],
  ])('are read from %s', async (_, where) => {
    const key = rig.key();
    await rig.open({ key });
    expect((await rig.send({ body: chatBody(), ...where(key) }).reply).status).toBe(200);
  });

  it('are required: no key, an unknown one and two different ones are refused', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const body = chatBody();
    expect((await rig.send({ path: '/v1/chat/completions', body }).reply).status).toBe(401);
    expect((await rig.send({ path: '/s/other/v1/chat/completions', body }).reply).status).toBe(401);
    const two = await rig.send({ path: `/s/${key}/v1/chat/completions`, body, headers: { 'x-api-key': 'sk-other' } })
      .reply;
    expect(two.status).toBe(400);
    expect(two.body).not.toContain(key);
    expect(rig.server.chats).toEqual([]);
    expect(session.requests).toBe(0);
  });

  it('of an ended session are answered 410, record nothing and cannot be reused', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    await session.close();
    await session.close();
    const late = await rig.chat(key).reply;
    expect(late.status).toBe(410);
    expect(JSON.parse(late.body).error).toMatchObject({ code: 'session_closed' });
    expect(session).toMatchObject({ completionCount: 0, requests: 0 });
    await expect(rig.open({ key })).rejects.toMatchObject({ code: 'conflict' });
  });
});

describe("a session's own socket", () => {
  let directory: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'floe-proxy-'));
  });
  afterEach(() => rm(directory, { recursive: true }));

  it('serves only its session and is removed afterwards', async () => {
    const [key, other] = [rig.key(), rig.key()];
    const socketPath = join(directory, 's.sock');
    const session = await rig.open({ key, socketPath });
    await rig.open({ key: other, sessionId: 'ses_2' });
    const path = '/v1/chat/completions';
    const own = await rig.send({ path, socketPath, body: chatBody(), headers: { 'x-api-key': key } }).reply;
    expect(own.status).toBe(200);
    const wrong = await rig.send({ path, socketPath, body: chatBody(), headers: { 'x-api-key': other } }).reply;
    expect(wrong.status).toBe(401);
    const idle = connect(socketPath);
    await new Promise((resolve) => idle.once('connect', resolve));
    const cut = new Promise((resolve) => idle.once('close', resolve));
    await session.close();
    await cut;
    expect(await readdir(directory)).toEqual([]);
  });

  it('leaves no key registered when it cannot be opened', async () => {
    const key = rig.key();
    await expect(rig.open({ key, socketPath: join(directory, 'x'.repeat(200)) })).rejects.toMatchObject({
      code: 'setup_failed',
    });
    await expect(rig.open({ key, socketPath: join(directory, 'missing', 's') })).rejects.toMatchObject({
      code: 'setup_failed',
    });
    expect((await rig.chat(key).reply).status).toBe(401);
  });
});

describe('routes', () => {
  it.each([
    ['POST', '/v1/unknown', 404],
    ['GET', '/v1/chat/completions', 405],
    ['POST', '/v1/models', 405],
    ['GET', '/', 404],
    ['POST', '/v1/chat/completions/', 404],
    ['POST', '/v1/engines/toy/completions', 404],
  ])('answer %s %s with status %d', async (method, path, status) => {
    const key = rig.key();
    await rig.open({ key });
    const reply = await rig.send({ method, path: `/s/${key}${path}` }).reply;
    expect(reply.status).toBe(status);
    if (status === 405) expect(reply.headers.allow).toBeTruthy();
    expect(JSON.parse(reply.body).error.message).toContain(path);
  });

  it('answer an unknown path below the Messages path in the form of that dialect', async () => {
    const key = rig.key();
    await rig.open({ key });
    const reply = await rig.send({ path: `/s/${key}/v1/messages/batches`, body: {} }).reply;
    expect(reply.status).toBe(404);
    expect(JSON.parse(reply.body)).toMatchObject({ type: 'error', error: { type: 'not_found_error' } });
  });
});

describe('the end of a session', () => {
  it('aborts the running calls, answers them and waits for them', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const gone = new Promise<void>((resolve) => {
      rig.server.onChat = ({ response }) => void response.once('close', resolve);
    });
    const sent = rig.chat(key);
    await rig.server.arrived(1);
    await session.close();
    await gone;
    expect((await sent.reply).status).toBe(410);
    expect(session).toMatchObject({ completionCount: 0, failures: { ofMain: null } });
  });

  it('records a reply that was sampled before it, once it is durable', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    rig.journal.hold = true;
    const sent = rig.chat(key);
    await rig.journal.waiting();
    const closed = session.close();
    rig.journal.held[0]?.commit();
    await closed;
    expect((await sent.reply).status).toBe(200);
    expect(session.completions()).toMatchObject([{ undelivered: false }]);
  });

  it('happens for all sessions when the proxy closes', async () => {
    const clock = new VirtualClock();
    const other = await Rig.start(clock);
    const key = other.key();
    await other.open({ key });
    other.server.onChat = () => {};
    const sent = other.chat(key);
    await other.server.arrived(1);
    await other.stop();
    await expect(sent.reply).resolves.toMatchObject({ status: 410 });
  });
});
