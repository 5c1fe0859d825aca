// Ten thousand inputs per dialect through the real proxy on loopback, most of them wrong, then clients and bodies that mean
// harm. Fails when the proxy answers anything but 2xx or 4xx, mangles a reply, keeps its event loop or its memory.
//
//   node bench/fuzz.mjs [--quick] [--json] [--seed=N]
//
// Three processes: a stub engine, the proxy (which watches its own event loop and heap), and this one as the client.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { Pool } from 'undici';
import { HISTORIES } from '../../bench/histories.mjs';
import { printReport, round } from '../../bench/report.mjs';

const SELF = fileURLToPath(import.meta.url);
const quick = process.argv.includes('--quick');
const INPUTS = quick ? 500 : 10_000;
const CONNECTIONS = 8;
/** Inputs of one session before the next one begins. */
const PER_SESSION = 250;
/** What other sessions of the node have to wait for at most, in 99 of 100 cases and for any body of {@link ORDINARY_MB}. */
const MAX_LAG_MS = 250;
/** Twice a conversation of a million tokens. */
const ORDINARY_MB = 8;
/**
 * One body of the largest size that is read, which nobody sends but to do harm or to show very many pictures. It takes half a
 * second on a quiet machine; a body that is parsed into very many values took eight.
 */
const MAX_LAG_LARGEST_MS = 1_000;
/** What may be left when all sessions are closed: compiled code and pools, but no requests. */
const MAX_HEAP_GROWTH_MB = 16;
const MB = 2 ** 20;

/** What a reply may hold that a careless stream would break on. */
const NASTY = [
  'plain',
  'a\n\ndata: {"x":1}\n\nevent: error\n\n: b',
  'cr\rlf\r\ncrlf\r\n\r\n',
  '\u2028line\u2029separators\u0085\ufeff\0\x1b[0m',
  'lone \ud800 surrogates \udfff',
  '😀 漢字 \u0301 \u202e',
  'data: [DONE]\n\n',
  '</think> <|im_end|> {"a": "\\ud83d"}',
];

// ---- the stub engine: says what the last message tells it to

function serveEngine() {
  const server = createServer((request, response) => {
    const send = (body) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    };
    if (request.url === '/v1/models') return send({ data: [{ id: 'stub', max_model_len: 131_072 }] });
    if (request.method !== 'POST') return response.writeHead(404).end();
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      if (request.url === '/tokenize') return send({ count: 4, max_model_len: 131_072, tokens: [1, 5, 6, 7] });
      answer(JSON.parse(Buffer.concat(chunks)), request.headers['x-request-id'], response, send);
    });
  });
  process.on('disconnect', () => process.exit());
  server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
}

function answer(body, id, response, send) {
  if (body.messages.length === 0) return response.writeHead(400).end('{"error":{"message":"no messages"}}');
  const asked = JSON.stringify(body.messages.at(-1)).match(/say (\d+) (\d+)/);
  const content = asked ? NASTY[asked[1]].repeat(Number(asked[2])) : 'Hello.';
  const ids = [11, 12, 2];
  const head = { id: `chatcmpl-${id}`, created: 1, model: 'stub' };
  const logprobs = {
    content: ids.map((token) => ({ token: `token_id:${token}`, logprob: -0.5, bytes: [], top_logprobs: [] })),
  };
  const usage = { prompt_tokens: 4, completion_tokens: ids.length, total_tokens: 7 };
  const finish = { finish_reason: 'stop', stop_reason: null };
  if (!body.stream) {
    const message = { role: 'assistant', content, tool_calls: [] };
    const choice = { index: 0, message, logprobs, ...finish, token_ids: ids };
    return send({ ...head, object: 'chat.completion', choices: [choice], usage, prompt_token_ids: [1, 5, 6, 7] });
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const chunk = (over, choice) =>
    response.write(
      `data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', choices: choice ? [{ index: 0, ...choice }] : [], ...over })}\n\n`,
    );
  chunk(
    { prompt_token_ids: [1, 5, 6, 7] },
    { delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null },
  );
  chunk({}, { delta: { content }, logprobs, ...finish, token_ids: ids });
  chunk({ usage }, null);
  response.end('data: [DONE]\n\n');
}

// ---- the proxy process

/** What this thread has run, by the kernel's account. */
function threadMs() {
  return Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1e6;
}

async function serveProxy() {
  const names = [
    'engines/pool/managed-engine-pools',
    'proxy/journal/journal',
    'proxy/http/proxy',
    'core/clock',
    'core/ids',
    'schema/index',
  ];
  const [{ createEnginePools }, { CaptureJournal }, { createProxy }, { systemClock }, { newSessionKey }, schema] =
    await Promise.all(names.map((name) => import(`../dist/${name}.js`)));
  const clock = systemClock;
  const [, , , engineUrl, directory] = process.argv;
  const engines = await createEnginePools([schema.engineSpecSchema.parse({ base_url: engineUrl })], { clock });
  const journal = await CaptureJournal.open(directory);
  const proxy = createProxy({ engines, journal, clock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const sampling = schema.samplingSchema.parse({});
  const engine = schema.taskEngineSchema.parse({});
  const lag = monitorEventLoopDelay({ resolution: 10 });
  lag.enable();
  const sessions = new Map();
  let opened = 0;
  let lastRanMs = 0;
  const close = async (key) => {
    const session = sessions.get(key);
    sessions.delete(key);
    await session.close();
    await journal.release(session.sessionId, session.attempt);
  };
  const answers = {
    async open() {
      const key = newSessionKey();
      const identity = { sessionId: `ses_${opened++}`, attempt: 0, sampleIndex: 0, modelName: 'policy', engine };
      sessions.set(key, await proxy.open({ ...identity, key, sampling, socketPath: null }));
      return { key };
    },
    async close({ key }) {
      await close(key);
      return {};
    },
    /**
     * Since the last time, in ms; the histogram's own interval is part of what it sees. `computed`: what the loop's thread
     * itself ran, which bounds every stall but for the machine's other work.
     */
    async lag() {
      // What stood still is only seen at the next tick.
      await new Promise((resolve) => setTimeout(resolve, 50));
      const ranMs = threadMs();
      const seen = { p99: lag.percentile(99) / 1e6, max: lag.max / 1e6, computed: ranMs - lastRanMs };
      lastRanMs = ranMs;
      lag.reset();
      return seen;
    },
    async heap() {
      // What was freed a moment ago may hold on until the loop has turned.
      await new Promise((resolve) => setImmediate(resolve));
      globalThis.gc();
      globalThis.gc();
      return { mb: process.memoryUsage().heapUsed / MB };
    },
  };
  process.on('message', async ({ id, ask, ...message }) => process.send({ id, ...(await answers[ask](message)) }));
  process.on('disconnect', () => process.exit());
  process.send({ port: Number(new URL(proxy.origin).port) });
}

// ---- the client

function start(...args) {
  const child = fork(SELF, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], execArgv: ['--expose-gc'] });
  const waiting = new Map();
  let asked = 0;
  const died = (code) => {
    console.error(`the ${args[0]} process ended with ${code}`);
    process.exit(1);
  };
  child.once('exit', died);
  child.on('message', (message) => {
    waiting.get(message.id)?.(message);
    waiting.delete(message.id);
  });
  return {
    ready: new Promise((resolve) => child.once('message', resolve)),
    ask: (ask, message = {}) =>
      new Promise((resolve) => {
        waiting.set(++asked, resolve);
        child.send({ id: asked, ask, ...message });
      }),
    stop: () => {
      child.off('exit', died);
      child.disconnect();
    },
  };
}

const problems = [];
/** The same complaint about many inputs is told once, with its first example. */
const problem = (what, example = '') => {
  const known = problems.find((entry) => entry.what === what);
  if (known) known.count++;
  else problems.push({ what, count: 1, example: String(example).slice(0, 300) });
};

/** How this dialect is asked for a generation, streamed. */
function requestLine(dialect) {
  const routes = dialect.routes.filter(({ kind }) => kind === 'generate');
  const route = routes.find(({ stream }) => stream === true) ?? routes[0];
  const path = route.path.replace('{model}', 'policy');
  return route.stream === undefined ? path : `${path}?alt=sse`;
}

/** A short session whose last user turn asks for a reply, streamed. Every `nonce` makes another request. */
function saying(name, index, times, nonce) {
  const text = `say ${index} ${times} #${nonce}`;
  switch (name) {
    case 'anthropic':
      return { model: 'policy', max_tokens: 99, stream: true, messages: [{ role: 'user', content: text }] };
    case 'openai_chat':
      return { model: 'policy', stream: true, messages: [{ role: 'user', content: text }] };
    case 'openai_responses':
      return { model: 'policy', stream: true, input: text };
    case 'gemini':
      return { contents: [{ role: 'user', parts: [{ text }] }] };
  }
}

/** The text of a streamed reply, read as the standard says. */
const TEXT_OF = {
  anthropic: (event) => event.delta?.text,
  openai_chat: (event) => event.choices?.[0]?.delta?.content,
  openai_responses: (event) => (event.type === 'response.output_text.delta' ? event.delta : ''),
  gemini: (event) => event.candidates?.[0]?.content?.parts?.map(({ text, thought }) => (thought ? '' : text)).join(''),
};

function textOf(name, stream) {
  let text = '';
  let data = [];
  for (const line of stream.split(/\r\n|\r|\n/)) {
    if (line === '') {
      if (data.length > 0 && data[0] !== '[DONE]') text += TEXT_OF[name](JSON.parse(data.join('\n'))) ?? '';
      data = [];
    } else if (line.startsWith('data:')) {
      data.push(line.slice(line[5] === ' ' ? 6 : 5));
    }
  }
  return text;
}

// What is done to a body on its way, by a number that decides everything.

const headersOf = (n) => {
  if (n % 53 === 0) return { 'content-type': 'text/plain' };
  if (n % 59 === 0) return { 'content-type': 'application/json; charset=utf-16' };
  return n % 61 === 0 ? {} : { 'content-type': 'application/json' };
};

const WRECKS = [
  (text, n) => text.slice(0, n % (text.length + 1)),
  (text, n) => {
    const bytes = Buffer.from(text);
    if (bytes.length > 0) bytes[n % bytes.length] = 0x80 | (n & 0x7f);
    return bytes;
  },
  (text) => text.replace(/"model"/g, '"model":5,"messages":[],"model"').replace(/"role"/g, '"role":"x","role"'),
  (text) => text.replace(/:\s*\d+/g, ':1e400').replace(/true|false/g, '-123456789012345678901234567890'),
  (text, n) => text.replace(/\{/, `{"deep":${'['.repeat(n % 20_000)}${']'.repeat(n % 20_000)},`),
  (text) => `\ufeff${text}`,
  (text, n) => `${text}${'\0'.repeat(n % 5)}`,
  (text) => text.replace(/"([^"]{4,})"/, '"\\ud800$1"'),
  (text, n) => text.slice(n % 7) + text,
];

function wreck(body, n) {
  const text = JSON.stringify(body) ?? '';
  // Most arrive as they are: what is wrong with them is their content.
  return n % 3 === 0 ? WRECKS[((n / 3) % WRECKS.length) | 0](text, n) : text;
}

async function fuzzDialect(rig, dialect, seed) {
  const { name } = dialect;
  const path = requestLine(dialect);
  const statuses = new Map();
  // Loaded here alone: the generators take a hundred megabytes, which would hide what the proxy takes.
  const { strangeBody } = await import('./bodies.mjs');
  const bodies = fc.sample(strangeBody(name), { numRuns: INPUTS, seed });
  let key = null;
  for (let from = 0; from < INPUTS; from += PER_SESSION) {
    ({ key } = await rig.proxy.ask('open'));
    let next = from;
    const end = Math.min(INPUTS, from + PER_SESSION);
    const worker = async () => {
      while (next < end) {
        const n = next++;
        if (n % 97 === 0) await halfRequest(rig, key, path, wreck(bodies[n], n));
        else await oneInput(rig, { key, path, name, n, body: bodies[n], statuses });
      }
    };
    await Promise.all(Array.from({ length: CONNECTIONS }, worker));
    await rig.proxy.ask('close', { key });
  }
  return Object.fromEntries([...statuses].sort(([a], [b]) => a - b));
}

/** Every twentieth is a valid one, whose reply is read back. */
async function oneInput(rig, { key, path, name, n, body, statuses }) {
  const valid = n % 20 === 1;
  const [index, times] = [n % NASTY.length, 1 + (n % 40)];
  const sent = valid
    ? JSON.stringify(n % 40 === 1 ? HISTORIES[name](2 + (n % 3)) : saying(name, index, times, n))
    : wreck(body, n);
  const headers = valid ? { 'content-type': 'application/json' } : headersOf(n);
  const reply = await rig.pool.request({ method: 'POST', path: `/s/${key}${path}`, headers, body: sent });
  const text = await reply.body.text();
  const status = reply.statusCode;
  statuses.set(status, (statuses.get(status) ?? 0) + 1);
  if (status >= 500 || status < 200 || (status >= 300 && status < 400)) problem(`${name}: status ${status}`, sent);
  if (valid && status !== 200) problem(`${name}: a valid request was answered ${status}`, text);
  if (status >= 400) JSON.parse(text);
  if (!valid || n % 40 === 1) return;
  const expected = NASTY[index].repeat(times);
  if (textOf(name, text) !== expected)
    problem(`${name}: reply text ${JSON.stringify(NASTY[index])} did not survive`, text);
}

function dial(rig) {
  const socket = connect({ host: '127.0.0.1', port: rig.port });
  socket.on('error', () => {});
  return socket;
}

const headOf = (key, path, bytes) =>
  `POST /s/${key}${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${bytes}\r\n\r\n`;

/** A body that is announced, begun and never finished. */
async function halfRequest(rig, key, path, body) {
  const socket = dial(rig);
  await once(socket, 'connect');
  const bytes = Buffer.from(body);
  socket.write(headOf(key, path, bytes.length + 10));
  await new Promise((resolve) => socket.write(bytes, resolve));
  socket.destroy();
}

/** Streams that nobody reads, and streams whose reader leaves in the middle. */
async function badReaders(rig, dialect, count) {
  const path = requestLine(dialect);
  const { key } = await rig.proxy.ask('open');
  const idle = [];
  for (let i = 0; i < count; i++) {
    const body = JSON.stringify(saying(dialect.name, 0, 100_000, i));
    const socket = dial(rig);
    await once(socket, 'connect');
    socket.write(headOf(key, path, Buffer.byteLength(body)) + body);
    if (i % 2 === 0) {
      idle.push(socket.pause());
    } else {
      await Promise.race([once(socket, 'data'), once(socket, 'close')]);
      socket.destroy();
    }
  }
  // The proxy still serves others meanwhile.
  const reply = await rig.pool.request({
    method: 'POST',
    path: `/s/${key}${path}`,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(saying(dialect.name, 0, 1, 'after')),
  });
  await reply.body.dump();
  if (reply.statusCode !== 200) problem(`${dialect.name}: ${reply.statusCode} beside clients that do not read`);
  for (const socket of idle) socket.destroy();
  await rig.proxy.ask('close', { key });
}

const chat = (rest) => `{"model":"policy","messages":[{"role":"user","content":${rest}`;

/** Bodies that cost most to take in, near the limit of what is read. */
const HEAVY = {
  'one text': (bytes) => `${chat('"')}${'x'.repeat(bytes - 100)}"}]}`,
  'one CJK text': (bytes) => `${chat('"')}${'漢'.repeat((bytes - 100) / 3)}"}]}`,
  'one escaped text': (bytes) => `${chat('"')}${'\\n\\"'.repeat((bytes - 100) / 4)}"}]}`,
  'messages of a kilobyte': (bytes) => {
    const message = `{"role":"user","content":"${'y'.repeat(1_000)}"}`;
    return `{"model":"policy","messages":[${`${message},`.repeat((bytes - 100) / (message.length + 1) - 1)}${message}]}`;
  },
  'very many small messages': () => {
    const message = '{"role":"user","content":"y"}';
    return `{"model":"policy","messages":[${`${message},`.repeat(65_000)}${message}]}`;
  },
  'a million keys': () => `${chat('"x"}]')}${Array.from({ length: 1e6 }, (_, i) => `,"k${i}":${i}`).join('')}}`,
  'empty arrays': (bytes) => `[${'[],'.repeat((bytes - 10) / 3)}[]]`,
  numbers: (bytes) => `[${'1,'.repeat((bytes - 10) / 2)}1]`,
};

/** Each alone; the best of three, since what else the machine does is not the proxy's. */
async function heavyBodies(rig, bytes, allowedMs) {
  const seen = {};
  for (const [name, make] of Object.entries(HEAVY)) {
    const body = Buffer.from(make(bytes));
    const lags = [];
    let status = 0;
    for (let i = 0; i < 3; i++) {
      const { key } = await rig.proxy.ask('open');
      await rig.proxy.ask('lag');
      const reply = await rig.pool.request({
        method: 'POST',
        path: `/s/${key}/v1/chat/completions`,
        headers: { 'content-type': 'application/json' },
        body,
      });
      await reply.body.dump();
      status = reply.statusCode;
      const { max, computed } = await rig.proxy.ask('lag');
      lags.push(Math.min(max, computed));
      await rig.proxy.ask('close', { key });
    }
    const lagMs = round(Math.min(...lags), 0);
    seen[name] = { mb: round(body.length / MB, 1), status, lag_ms: lagMs };
    if (lagMs > allowedMs) problem(`${name}, ${seen[name].mb} MB: the event loop stood still for ${lagMs} ms`);
    if (status !== 200 && status !== 413) problem(`${name}: status ${status}`);
  }
  return seen;
}

async function main() {
  const seed = Number(process.argv.find((arg) => arg.startsWith('--seed='))?.slice(7) ?? 1);
  const [{ DIALECTS }, { MAX_BODY_BYTES }] = await Promise.all(
    ['dialects/registry', 'proxy/http/body'].map((name) => import(`../dist/${name}.js`)),
  );
  const directory = await mkdtemp(join(tmpdir(), 'floe-fuzz-'));
  const engine = start('engine');
  const { port: enginePort } = await engine.ready;
  const proxy = start('proxy', `http://127.0.0.1:${enginePort}`, directory);
  const { port } = await proxy.ready;
  const pool = new Pool(`http://127.0.0.1:${port}`, { connections: CONNECTIONS, headersTimeout: 0, bodyTimeout: 0 });
  const rig = { proxy, port, pool };
  const rows = [];
  const report = { dialects: {}, heavy: {} };
  try {
    // A small first round, so that what is loaded and compiled once is not taken for a leak.
    for (const dialect of DIALECTS) await badReaders(rig, dialect, 2);
    const before = await proxy.ask('heap');
    for (const dialect of DIALECTS) {
      await proxy.ask('lag');
      const statuses = await fuzzDialect(rig, dialect, seed);
      await badReaders(rig, dialect, quick ? 10 : 60);
      const { p99, max } = await proxy.ask('lag');
      if (p99 > MAX_LAG_MS) problem(`${dialect.name}: event-loop lag p99 ${round(p99, 0)} ms`);
      report.dialects[dialect.name] = { statuses, lag_p99_ms: round(p99, 1), lag_max_ms: round(max, 1) };
      const told = Object.entries(statuses).map(([status, count]) => `${count} x ${status}`);
      rows.push([dialect.name, `${round(p99, 1)} ms`, `lag p99 (max ${round(max, 1)}); ${told.join(', ')}`]);
    }
    report.heavy = {
      ordinary: await heavyBodies(rig, ORDINARY_MB * MB, MAX_LAG_MS),
      largest: await heavyBodies(rig, MAX_BODY_BYTES, MAX_LAG_LARGEST_MS),
    };
    for (const [name, { mb, status, lag_ms }] of Object.values(report.heavy).flatMap(Object.entries))
      rows.push([name, `${lag_ms} ms`, `longest lag; ${mb} MB, answered ${status}`]);
    const after = await proxy.ask('heap');
    report.heap_mb = { before: round(before.mb, 1), after: round(after.mb, 1) };
    rows.push(['heap', `${report.heap_mb.after} MB`, `after garbage collection; ${report.heap_mb.before} before`]);
    if (after.mb - before.mb > MAX_HEAP_GROWTH_MB) problem(`the heap grew by ${round(after.mb - before.mb, 1)} MB`);
  } finally {
    await pool.destroy();
    engine.stop();
    proxy.stop();
    await rm(directory, { recursive: true });
  }
  for (const { what, count, example } of problems) console.error(`${count} x ${what}\n  ${example}`);
  printReport(`${INPUTS} inputs per dialect through the proxy, seed ${seed}`, rows, { ...report, seed, problems });
  if (problems.length > 0) process.exitCode = 1;
}

const role = process.argv[2];
if (role === 'engine') serveEngine();
else if (role === 'proxy') await serveProxy();
else await main();
