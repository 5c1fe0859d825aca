// A vLLM server that answers with prepared replies, at next to no cost of its own. What it renders, it renders by a template of its
// own: four characters are one id. Forked by bench/proxy.mjs.
import { createServer } from 'node:http';
import { CHAT_PATH, CHUNK_IDS, SMALL, TURN } from './proxy-turns.mjs';

/** Replies of one kind differ in their last prompt ids, as the turns of a session do. */
const VARIANTS = 16;
const CHANGING_IDS = 300;

/** Ids of the template; those of text begin above them. */
const [START, CLOSE, LINE, CALL] = [1, 2, 3, 4];
const ROLES = { system: 5, user: 6, assistant: 7, tool: 8 };
const FIRST_TEXT_ID = 100;
const VOCABULARY = 149_000;
const CHARS_PER_ID = 4;

const MODEL = '{"data":[{"id":"stub","max_model_len":131072}]}';
const EVENT_STREAM = { 'content-type': 'text/event-stream' };

const textId = (n) => FIRST_TEXT_ID + ((n * 7_919) % VOCABULARY);
const logprobAt = (i) => -((i * 37) % 1_000) / 997;
const sampledIds = (count, variant) => [
  ...Array.from({ length: count - 1 }, (_, i) => textId(i * 31 + variant)),
  CLOSE,
];

function promptIds(count, variant) {
  const ids = Array.from({ length: count }, (_, i) => textId(i));
  for (let i = Math.max(0, count - CHANGING_IDS); i < count; i++) ids[i] = textId(i + variant + 1);
  return ids;
}

const chatLogprobs = (ids, from) =>
  ids.map((id, i) => {
    const token = `token_id:${id}`;
    return { token, logprob: logprobAt(from + i), bytes: [...Buffer.from(token)], top_logprobs: [] };
  });

function chatReply(kind, variant) {
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

/** The events of the same reply as a stream: the prompt's ids, sampled ids by the chunk, usage. */
function chatEvents(kind, variant) {
  const [prompt, sampled] = [promptIds(kind.promptIds, variant), sampledIds(kind.responseIds, variant)];
  const head = { id: 'chatcmpl-stub', object: 'chat.completion.chunk', created: 1_700_000_000, model: 'stub' };
  const event = (rest) => Buffer.from(`data: ${JSON.stringify({ ...head, ...rest })}\n\n`);
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

const usageOf = (prompt, sampled) => ({
  prompt_tokens: prompt,
  total_tokens: prompt + sampled,
  completion_tokens: sampled,
});

// ---- token in, token out

function addText(ids, text) {
  for (let at = 0; at < text.length; at += CHARS_PER_ID) {
    let number = 0;
    for (let i = at; i < Math.min(text.length, at + CHARS_PER_ID); i++) number = number * 31 + text.charCodeAt(i);
    ids.push(textId(number));
  }
}

function rendered({ messages, add_generation_prompt }) {
  const ids = [];
  for (const { role, content, reasoning_content, tool_calls } of messages) {
    ids.push(START, ROLES[role]);
    addText(ids, reasoning_content ?? '');
    addText(ids, content ?? '');
    for (const { function: called } of tool_calls ?? []) {
      ids.push(CALL);
      addText(ids, called.name);
      addText(ids, called.arguments);
    }
    ids.push(CLOSE, LINE);
  }
  if (add_generation_prompt) ids.push(START, ROLES.assistant);
  return Buffer.from(JSON.stringify({ token_ids: ids }));
}

/** What comes before the prompt's ids in a reply, which are those of the request as they stand there. */
function generated(variant) {
  const ids = sampledIds(TURN.responseIds, variant);
  const content = ids.map((token_id, i) => ({ token_id, logprob: logprobAt(i), rank: 1, top_logprobs: [] }));
  const choice = { index: 0, token_ids: ids, logprobs: { content }, finish_reason: 'stop', stop_reason: null };
  const text = JSON.stringify({ request_id: 'generate-tokens-stub', model: 'stub', choices: [choice] });
  return Buffer.from(`${text.slice(0, -1)},"prompt_token_ids":`);
}

function echoOf(body) {
  const key = '"token_ids":';
  const start = body.indexOf(key) + key.length;
  return body.subarray(start, body.indexOf(']', start) + 1);
}

let derendered = 0;

function derender(body) {
  const ids = JSON.parse(body).generate_response.choices[0].token_ids;
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

// ---- the server

const prepared = (make, kind) => Array.from({ length: VARIANTS }, (_, variant) => make(kind, variant));
const chat = { small: prepared(chatReply, SMALL), turn: prepared(chatReply, TURN) };
const events = { small: prepared(chatEvents, SMALL), turn: prepared(chatEvents, TURN) };
const generatedHeads = Array.from({ length: VARIANTS }, (_, variant) => generated(variant));
let delayMs = 0;
let served = 0;

function stream(response, pieces) {
  response.writeHead(200, EVENT_STREAM);
  let next = 0;
  const more = () => {
    response.write(pieces[next++]);
    if (next < pieces.length) setTimeout(more, delayMs / pieces.length);
    else response.end();
  };
  more();
}

function send(response, body) {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
  response.end(body);
}

function sendPaced(response, body) {
  if (delayMs === 0) send(response, body);
  else setTimeout(() => send(response, body), delayMs);
}

/** Of all the addresses that take a body. */
const answers = {
  [CHAT_PATH](response, body) {
    const kind = body.length > TURN.requestBytes / 2 ? 'turn' : 'small';
    const variant = served++ % VARIANTS;
    if (body.includes('"stream":true', body.length - 1_000)) stream(response, events[kind][variant]);
    else sendPaced(response, chat[kind][variant]);
  },
  '/inference/v1/generate'(response, body) {
    const head = generatedHeads[served++ % VARIANTS];
    const echo = echoOf(body);
    const count = echo.reduce((sum, byte) => sum + (byte === 0x2c ? 1 : 0), 1);
    const usage = JSON.stringify(usageOf(count, TURN.responseIds));
    sendPaced(response, Buffer.concat([head, echo, Buffer.from(`,"usage":${usage}}`)]));
  },
  '/v1/chat/completions/render': (response, body) => send(response, rendered(JSON.parse(body))),
  '/v1/chat/completions/derender': (response, body) => send(response, derender(body)),
};

const server = createServer((request, response) => {
  if (request.method === 'GET') {
    if (request.url === '/v1/models') return send(response, Buffer.from(MODEL));
    if (request.url === '/version') return send(response, Buffer.from('{"version":"0.30.0"}'));
    return response.writeHead(answers[request.url] === undefined ? 404 : 405).end();
  }
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const answer = answers[request.url];
    const body = Buffer.concat(chunks);
    if (answer === undefined) response.writeHead(404).end();
    else if (body.length <= 2) response.writeHead(400).end();
    else answer(response, body);
  });
});
process.on('message', ({ ask, ...message }) => {
  delayMs = message.delayMs;
  process.send({ ask });
});
process.on('disconnect', () => process.exit());
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', 4_096, () => process.send({ port: server.address().port }));
