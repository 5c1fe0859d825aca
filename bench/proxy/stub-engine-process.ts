// A stub of a vLLM server. It sends prepared replies, so that it uses almost no CPU time. Its chat template is trivial: every four
// characters of text become one token id.
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { systemClock } from '@floe-rl/core';
import { serveBench } from '../child.ts';
import { type CallKind, CHAT_PATH, CHUNK_IDS, SMALL, TURN } from './client.ts';

/** Number of different prepared replies for each size of call. */
const VARIANTS = 16;
/**
 * The prepared replies contain the prompt's token ids. This is the number of ids at the end of the prompt that differ between the replies.
 * All earlier ids are equal, as in consecutive turns of a session.
 */
const CHANGING_IDS = 300;

/**
 * Token id that starts a message in the stub's chat template. The constants after it are the ids of its other special tokens; ids of text
 * start at `FIRST_TEXT_ID`.
 */
const START = 1;
const CLOSE = 2;
const LINE = 3;
const CALL = 4;
/** Id that closes a tool call. A reply with calls ends with it, so that the client can recognise a complete reply without decoding it. */
const CALL_END = 9;
const ROLES = { system: 5, user: 6, assistant: 7, tool: 8 } as const;
const FIRST_TEXT_ID = 100;
const VOCABULARY = 149_000;
const CHARS_PER_ID = 4;

const MODEL = '{"data":[{"id":"stub","max_model_len":131072}]}';
const EVENT_STREAM = { 'content-type': 'text/event-stream' };

const textId = (n: number): number => FIRST_TEXT_ID + ((n * 7_919) % VOCABULARY);
const logprobAt = (i: number): number => -((i * 37) % 1_000) / 997;
const sampledIds = (count: number, variant: number): number[] => [
  ...Array.from({ length: count - 1 }, (_, i) => textId(i * 31 + variant)),
  CLOSE,
];

function promptIds(count: number, variant: number): number[] {
  const ids = Array.from({ length: count }, (_, i) => textId(i));
  for (let i = Math.max(0, count - CHANGING_IDS); i < count; i++) ids[i] = textId(i + variant + 1);
  return ids;
}

const chatLogprobs = (ids: readonly number[], from: number): object[] =>
  ids.map((id, i) => {
    const token = `token_id:${id}`;
    return { token, logprob: logprobAt(from + i), bytes: [...Buffer.from(token)], top_logprobs: [] };
  });

function chatReply(kind: CallKind, variant: number): Buffer {
  const [prompt, sampled] = [promptIds(kind.promptIds, variant), sampledIds(kind.responseIds, variant)];
  const choice = {
    index: 0,
    message: { role: 'assistant', content: 'word '.repeat(kind.responseIds), reasoning: null, tool_calls: [] },
    logprobs: { content: chatLogprobs(sampled, 0) },
    finish_reason: 'stop',
    stop_reason: null,
    token_ids: sampled,
  };
  const usage = usageOf(kind.promptIds, kind.responseIds);
  const head = { id: 'chatcmpl-stub', object: 'chat.completion', created: 1_700_000_000, model: 'stub' };
  return Buffer.from(JSON.stringify({ ...head, choices: [choice], usage, prompt_token_ids: prompt }));
}

function withoutIds(kind: CallKind): Buffer {
  const { choices, prompt_token_ids: _, ...rest } = JSON.parse(chatReply(kind, 0).toString());
  const [{ logprobs: __, token_ids: ___, ...choice }] = choices;
  return Buffer.from(JSON.stringify({ ...rest, choices: [{ ...choice, logprobs: null }] }));
}

/** Returns a streamed chat reply as server-sent events: first the prompt's ids, then the sampled ids in chunks, and last the usage. */
function chatEvents(kind: CallKind, variant: number): Buffer[] {
  const [prompt, sampled] = [promptIds(kind.promptIds, variant), sampledIds(kind.responseIds, variant)];
  const head = { id: 'chatcmpl-stub', object: 'chat.completion.chunk', created: 1_700_000_000, model: 'stub' };
  const event = (rest: object): Buffer => Buffer.from(`data: ${JSON.stringify({ ...head, ...rest })}\n\n`);
  const first = { index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null };
  const events = [event({ choices: [first], prompt_token_ids: prompt })];
  for (let at = 0; at < sampled.length; at += CHUNK_IDS) {
    const ids = sampled.slice(at, at + CHUNK_IDS);
    const delta = { content: 'word '.repeat(ids.length) };
    const finish_reason = at + CHUNK_IDS < sampled.length ? null : 'stop';
    const logprobs = { content: chatLogprobs(ids, at) };
    events.push(event({ choices: [{ index: 0, delta, logprobs, finish_reason, token_ids: ids }] }));
  }
  const usage = event({ choices: [], usage: usageOf(kind.promptIds, kind.responseIds) });
  return [...events, Buffer.concat([usage, Buffer.from('data: [DONE]\n\n')])];
}

const usageOf = (prompt: number, sampled: number): object => ({
  prompt_tokens: prompt,
  total_tokens: prompt + sampled,
  completion_tokens: sampled,
});

function addText(ids: number[], text: string): void {
  for (let at = 0; at < text.length; at += CHARS_PER_ID) {
    let number = 0;
    for (let i = at; i < Math.min(text.length, at + CHARS_PER_ID); i++) number = number * 31 + text.charCodeAt(i);
    ids.push(textId(number));
  }
}

type RenderRequest = {
  readonly messages: readonly {
    readonly role: keyof typeof ROLES;
    readonly content?: string | null;
    readonly reasoning_content?: string;
    readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: string } }[];
  }[];
  readonly add_generation_prompt: boolean;
};

function rendered({ messages, add_generation_prompt }: RenderRequest): Buffer {
  const ids: number[] = [];
  for (const { role, content, reasoning_content, tool_calls } of messages) {
    ids.push(START, ROLES[role]);
    addText(ids, reasoning_content ?? '');
    addText(ids, content ?? '');
    for (const { function: called } of tool_calls ?? []) {
      ids.push(CALL);
      addText(ids, called.name);
      addText(ids, called.arguments);
      ids.push(CALL_END);
    }
    ids.push(CLOSE, LINE);
  }
  if (add_generation_prompt) ids.push(START, ROLES.assistant);
  return Buffer.from(JSON.stringify({ token_ids: ids }));
}

/**
 * Returns the start of a reply to `/inference/v1/generate`, up to the key `prompt_token_ids`. The prompt's ids are copied from the request
 * and follow this text.
 */
function generatedHead(variant: number): Buffer {
  const ids = sampledIds(TURN.responseIds, variant);
  ids[ids.length - 2] = CALL_END;
  const content = ids.map((token_id, i) => ({ token_id, logprob: logprobAt(i), rank: 1, top_logprobs: [] }));
  const choice = { index: 0, token_ids: ids, logprobs: { content }, finish_reason: 'stop', stop_reason: null };
  const text = JSON.stringify({ request_id: 'generate-tokens-stub', model: 'stub', choices: [choice] });
  return Buffer.from(`${text.slice(0, -1)},"prompt_token_ids":`);
}

/** Returns the part of a request body that contains the prompt's ids as a JSON array. */
function echoOf(body: Buffer): Buffer {
  const key = '"token_ids":';
  const start = body.indexOf(key) + key.length;
  return body.subarray(start, body.indexOf(']', start) + 1);
}

let derendered = 0;

function derender(body: Buffer): Buffer {
  const { generate_response } = JSON.parse(body.toString()) as {
    generate_response: { choices: [{ token_ids: number[] }] };
  };
  const ids = generate_response.choices[0].token_ids;
  const n = derendered++;
  const call = { name: 'bash', arguments: `{"command":"cat src/module_${n}.py"}` };
  const message = {
    role: 'assistant',
    content: 'word '.repeat(ids.length / 2),
    reasoning: 'Which file was it?',
    tool_calls: [{ id: `chatcmpl-tool-${n}`, type: 'function', function: call }],
  };
  return Buffer.from(
    JSON.stringify({ model: 'stub', choices: [{ index: 0, message }], usage: { completion_tokens: ids.length } }),
  );
}

function prepared<T>(make: (kind: CallKind, variant: number) => T, kind: CallKind): T[] {
  return Array.from({ length: VARIANTS }, (_, variant) => make(kind, variant));
}

const chat = { small: prepared(chatReply, SMALL), turn: prepared(chatReply, TURN) };
const events = { small: prepared(chatEvents, SMALL), turn: prepared(chatEvents, TURN) };
const generatedHeads = Array.from({ length: VARIANTS }, (_, variant) => generatedHead(variant));
const plain = { small: withoutIds(SMALL), turn: withoutIds(TURN) };
let delayMs = 0;
/** Whether chat replies contain ids and log-probabilities. Without them they are the replies to a client that requested neither. */
let includesIds = true;
let served = 0;

/** Returns the next of the prepared replies, in rotation. */
function next<T>(values: readonly T[]): T {
  const value = values[served++ % VARIANTS];
  if (value === undefined) throw new RangeError('nothing is prepared');
  return value;
}

function stream(response: ServerResponse, pieces: readonly Buffer[]): void {
  response.writeHead(200, EVENT_STREAM);
  const sendFrom = (index: number): void => {
    response.write(pieces[index]);
    if (index + 1 < pieces.length) systemClock.schedule(delayMs / pieces.length, () => sendFrom(index + 1));
    else response.end();
  };
  sendFrom(0);
}

function send(response: ServerResponse, body: Buffer): void {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
  response.end(body);
}

function sendPaced(response: ServerResponse, body: Buffer): void {
  if (delayMs === 0) send(response, body);
  else systemClock.schedule(delayMs, () => send(response, body));
}

type Handler = (response: ServerResponse, body: Buffer) => void;

/** Handlers of POST requests, by URL path. */
const HANDLERS: Readonly<Record<string, Handler>> = {
  [CHAT_PATH](response, body) {
    const kind = body.length > TURN.requestBytes / 2 ? 'turn' : 'small';
    if (body.includes('"stream":true', body.length - 1_000)) stream(response, next(events[kind]));
    else sendPaced(response, includesIds ? next(chat[kind]) : plain[kind]);
  },
  '/inference/v1/generate'(response, body) {
    const echo = echoOf(body);
    const count = echo.reduce((sum, byte) => sum + (byte === 0x2c ? 1 : 0), 1);
    const usage = JSON.stringify(usageOf(count, TURN.responseIds));
    sendPaced(response, Buffer.concat([next(generatedHeads), echo, Buffer.from(`,"usage":${usage}}`)]));
  },
  '/v1/chat/completions/render': (response, body) => send(response, rendered(JSON.parse(body.toString()))),
  '/v1/chat/completions/derender': (response, body) => send(response, derender(body)),
};

const server = createServer((request, response) => {
  const handler = HANDLERS[request.url ?? ''];
  if (request.method === 'GET') {
    if (request.url === '/v1/models') return send(response, Buffer.from(MODEL));
    if (request.url === '/health') return void response.writeHead(200).end();
    if (request.url === '/version') return send(response, Buffer.from('{"version":"0.30.0"}'));
    return void response.writeHead(handler === undefined ? 404 : 405).end();
  }
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const body = Buffer.concat(chunks);
    if (handler === undefined) response.writeHead(404).end();
    else if (body.length <= 2) response.writeHead(400).end();
    else handler(response, body);
  });
});
server.keepAliveTimeout = 60_000;
// The listen backlog is large enough for the 1,024 connections that the case `crowd` opens.
server.listen(0, '127.0.0.1', 4_096);
await once(server, 'listening');
serveBench(
  { port: (server.address() as AddressInfo).port },
  {
    delay(fields: { delayMs: number }) {
      delayMs = fields.delayMs;
      return {};
    },
    ids(fields: { included: boolean }) {
      includesIds = fields.included;
      return {};
    },
  },
);
