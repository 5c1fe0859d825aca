// What the proxy adds to a model call, as its client sees it, and what it costs in CPU. Journal and fsync are on.
//
//   node bench/proxy.mjs [--quick] [--json]
//
// Three processes: a stub engine with prepared vLLM replies, the proxy, and this one as the client. Every round calls the
// engine directly and through the proxy, one after the other, so that a slow moment of the machine hits both.
import { execFileSync, fork } from 'node:child_process';
import { constants } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Pool } from 'undici';

const SELF = fileURLToPath(import.meta.url);
const CHAT_PATH = '/v1/chat/completions';

/** A turn in the middle of a coding session: history up, all prompt ids and some 300 sampled tokens down. */
const TURN = { requestBytes: 62_000, promptIds: 16_000, responseIds: 300 };
const SMALL = { requestBytes: 350, promptIds: 60, responseIds: 20 };
/** Replies of one kind differ in their last ids, as the turns of a session do. */
const VARIANTS = 16;
const CHANGING_IDS = 300;
/** Turns of one session before the next one begins. */
const TURNS_PER_SESSION = 50;
/** At 64 connections the engine takes this long, so that the client's own queueing does not hide the proxy's. */
const PACED_MS = 25;

const role = process.argv[2];
if (role === 'engine') serveEngine();
else if (role === 'proxy') await serveProxy();
else await main(process.argv.includes('--quick'), process.argv.includes('--json'));

// ---- the stub engine

function preparedReply({ promptIds, responseIds }, variant) {
  const id = (i) => 1_000 + ((i * 7_919) % 149_000);
  const prompt = Array.from({ length: promptIds }, (_, i) => id(i));
  for (let i = Math.max(0, promptIds - CHANGING_IDS); i < promptIds; i++) prompt[i] = id(i + variant + 1);
  const response = Array.from({ length: responseIds }, (_, i) => id(i * 31 + variant));
  const reply = {
    id: 'chatcmpl-stub',
    object: 'chat.completion',
    created: 1_700_000_000,
    model: 'stub',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: 'word '.repeat(responseIds), reasoning: null, tool_calls: [] },
        logprobs: {
          content: response.map((id, i) => ({
            token: `token_id:${id}`,
            logprob: -((i * 37) % 1_000) / 997,
            bytes: [...Buffer.from(`token_id:${id}`)],
            top_logprobs: [],
          })),
        },
        finish_reason: 'stop',
        stop_reason: null,
        token_ids: response,
      },
    ],
    usage: { prompt_tokens: promptIds, total_tokens: promptIds + responseIds, completion_tokens: responseIds },
    prompt_token_ids: prompt,
  };
  return Buffer.from(JSON.stringify(reply));
}

function serveEngine() {
  const replies = (kind) => Array.from({ length: VARIANTS }, (_, variant) => preparedReply(kind, variant));
  const [small, turn] = [replies(SMALL), replies(TURN)];
  let delayMs = 0;
  let served = 0;
  const server = createServer((request, response) => {
    const send = (body) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
      response.end(body);
    };
    if (request.url === '/v1/models') return send(Buffer.from('{"data":[{"id":"stub","max_model_len":131072}]}'));
    if (request.url !== CHAT_PATH) return response.writeHead(404).end();
    let bytes = 0;
    request.on('data', (chunk) => {
      bytes += chunk.length;
    });
    request.on('end', () => {
      const kind = bytes > TURN.requestBytes / 2 ? turn : small;
      const body = kind[served++ % VARIANTS];
      if (delayMs === 0) send(body);
      else setTimeout(() => send(body), delayMs);
    });
  });
  process.on('message', (message) => {
    delayMs = message.delayMs;
    process.send({ ok: true });
  });
  process.on('disconnect', () => process.exit());
  server.keepAliveTimeout = 60_000;
  server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
}

// ---- the proxy process

async function serveProxy() {
  const [{ createEnginePool }, { CaptureJournal }, { createProxy }, { systemClock }, { newSessionKey }, schema] =
    await Promise.all(
      ['engines/pool', 'proxy/journal', 'proxy/proxy', 'core/clock', 'core/ids', 'schema/index'].map(
        (name) => import(`../dist/${name}.js`),
      ),
    );
  const clock = systemClock;
  const [, , , engineUrl, directory] = process.argv;
  const engines = await createEnginePool([schema.engineSpecSchema.parse({ base_url: engineUrl })], { clock });
  const journal = await CaptureJournal.open(directory);
  const proxy = createProxy({ engines, journal, clock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const sampling = schema.samplingSchema.parse({});
  let sessions = [];
  let opened = 0;
  const answers = {
    async open({ count }) {
      const keys = [];
      for (let i = 0; i < count; i++) {
        const key = newSessionKey();
        const identity = { sessionId: `ses_${opened++}`, attempt: 0, sampleIndex: 0, modelName: 'policy' };
        sessions.push(await proxy.open({ ...identity, key, sampling, socketPath: null }));
        keys.push(key);
      }
      return { keys };
    },
    async closeAll() {
      const turns = sessions.reduce((sum, session) => sum + session.completions().length, 0);
      for (const session of sessions) {
        await session.close();
        await journal.release(session.sessionId, session.attempt);
      }
      sessions = [];
      return { turns };
    },
    async cpu() {
      const { user, system } = process.cpuUsage();
      return { us: user + system, rssMb: process.memoryUsage().rss / 1e6 };
    },
  };
  process.on('message', async (message) => process.send(await answers[message.ask](message)));
  process.on('disconnect', () => process.exit());
  process.send({ port: Number(new URL(proxy.origin).port) });
}

// ---- the client

function start(...args) {
  const child = fork(SELF, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const answer = () =>
    new Promise((resolve, reject) => {
      const died = (code) => reject(new Error(`${args[0]} process ended with ${code}`));
      child.once('exit', died);
      child.once('message', (message) => {
        child.off('exit', died);
        resolve(message);
      });
    });
  return {
    ready: answer(),
    ask: (message) => {
      const answered = answer();
      child.send(message);
      return answered;
    },
    stop: () => child.disconnect(),
  };
}

/** The request body without its last few characters, which make each call a request of its own. */
function bodyOf({ requestBytes }) {
  const messages = [{ role: 'system', content: 'You are an agent in a repository.' }];
  if (requestBytes > 1_000) {
    const tool = 'def f(x):\n    return "a\\tb"  # some code with "quotes"\n'.repeat(30);
    for (let i = 0; JSON.stringify(messages).length < requestBytes - 2_200; i++) {
      const call = {
        id: `call_${i}`,
        type: 'function',
        function: { name: 'bash', arguments: `{"command":"cat f${i}.py"}` },
      };
      messages.push({
        role: 'assistant',
        content: 'Let me look.',
        reasoning_content: 'Hm, which file?',
        tool_calls: [call],
      });
      messages.push({ role: 'tool', tool_call_id: `call_${i}`, content: tool });
    }
  }
  const head = JSON.stringify({ model: 'policy', max_tokens: 512, messages }).slice(0, -2);
  return (nonce) => `${head},{"role":"user","content":"go on ${nonce}"}]}`;
}

async function round(pool, paths, body, { connections, calls }) {
  const latencies = [];
  let next = 0;
  const worker = async () => {
    while (next < calls) {
      const n = next++;
      const text = body(n);
      const startMs = performance.now();
      const reply = await pool.request({
        method: 'POST',
        path: paths(n),
        headers: { 'content-type': 'application/json' },
        body: text,
      });
      await reply.body.dump({ limit: 1e9 });
      if (reply.statusCode !== 200) throw new Error(`status ${reply.statusCode}`);
      latencies.push(performance.now() - startMs);
    }
  };
  await Promise.all(Array.from({ length: connections }, worker));
  return latencies;
}

/** What the disk alone takes for one small record: it is part of every call's added latency. Median, ms. */
async function measureSync(directory) {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_DSYNC;
  const file = await open(join(directory, 'sync'), flags);
  const record = Buffer.alloc(1_200, 1);
  const latencies = [];
  for (let i = 0; i < 500; i++) {
    const startMs = performance.now();
    await file.write(record);
    latencies.push(performance.now() - startMs);
  }
  await file.close();
  return quantile(latencies, 0.5);
}

function quantile(values, q) {
  values.sort((a, b) => a - b);
  return values[Math.min(values.length - 1, Math.floor(values.length * q))];
}

async function measure(rig, kind, { connections, calls, rounds, delayMs = 0 }) {
  await rig.engine.ask({ delayMs });
  const body = bodyOf(kind);
  const direct = [];
  const proxied = [];
  let cpuUs = 0;
  let rssMb = 0;
  // The first round only warms up.
  for (let i = 0; i <= rounds; i++) {
    const plain = await round(rig.direct, () => CHAT_PATH, body, { connections, calls });
    const { keys } = await rig.proxy.ask({ ask: 'open', count: Math.ceil(calls / TURNS_PER_SESSION) });
    const before = await rig.proxy.ask({ ask: 'cpu' });
    const path = (n) => `/s/${keys[n % keys.length]}${CHAT_PATH}`;
    const through = await round(rig.through, path, body, { connections, calls });
    const after = await rig.proxy.ask({ ask: 'cpu' });
    const { turns } = await rig.proxy.ask({ ask: 'closeAll' });
    if (turns !== calls) throw new Error(`${calls} calls, but ${turns} completions recorded`);
    if (i === 0) continue;
    direct.push(...plain);
    proxied.push(...through);
    cpuUs += after.us - before.us;
    rssMb = Math.max(rssMb, after.rssMb);
  }
  const added = (q) => quantile(proxied, q) - quantile(direct, q);
  return {
    connections,
    direct_p50_ms: quantile(direct, 0.5),
    proxied_p50_ms: quantile(proxied, 0.5),
    added_p50_ms: added(0.5),
    added_p99_ms: added(0.99),
    cpu_us: cpuUs / (calls * rounds),
    rss_mb: rssMb,
  };
}

async function main(quick, json) {
  const directory = await mkdtemp(join(tmpdir(), 'floe-bench-'));
  const engine = start('engine');
  const { port: enginePort } = await engine.ready;
  const engineUrl = `http://127.0.0.1:${enginePort}`;
  const proxy = start('proxy', engineUrl, directory);
  try {
    const { port } = await proxy.ready;
    const pool = (origin) => new Pool(origin, { connections: 64, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
    const rig = { engine, proxy, direct: pool(engineUrl), through: pool(`http://127.0.0.1:${port}`) };
    const scale = quick ? 0.2 : 1;
    const n = (calls) => Math.max(50, Math.round(calls * scale));
    const cases = {
      small_c1: await measure(rig, SMALL, { connections: 1, calls: n(2_000), rounds: 5 }),
      small_c64: await measure(rig, SMALL, { connections: 64, calls: n(4_000), rounds: 5, delayMs: PACED_MS }),
      turn_c1: await measure(rig, TURN, { connections: 1, calls: n(400), rounds: 5 }),
      turn_c64: await measure(rig, TURN, { connections: 64, calls: n(1_000), rounds: 3, delayMs: PACED_MS }),
    };
    await Promise.all([rig.direct.close(), rig.through.close()]);
    report(cases, await measureSync(directory), json);
  } finally {
    engine.stop();
    proxy.stop();
    await rm(directory, { recursive: true });
  }
}

function report(cases, syncMs, json) {
  const rounded = (value) => Math.round(value * 1_000) / 1_000;
  const rows = Object.fromEntries(
    Object.entries(cases).map(([name, row]) => [
      name,
      Object.fromEntries(Object.entries(row).map(([key, value]) => [key, rounded(value)])),
    ]),
  );
  console.table(rows);
  const result = {
    added_p50_ms_c1: rows.small_c1.added_p50_ms,
    added_p99_ms_c64: rows.small_c64.added_p99_ms,
    turns_per_cpu_s: Math.round(1e6 / cases.turn_c64.cpu_us),
    turns_per_cpu_s_c1: Math.round(1e6 / cases.turn_c1.cpu_us),
    cpu_us_small: Math.round(cases.small_c1.cpu_us),
    sync_p50_ms: rounded(syncMs),
    cases: rows,
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    node: process.version,
    commit: commit(),
  };
  console.log(
    `small call: +${result.added_p50_ms_c1} ms p50 at 1 connection, +${result.added_p99_ms_c64} ms p99 at 64 (engine paced at ${PACED_MS} ms), ${result.cpu_us_small} us CPU; one synced append alone: ${result.sync_p50_ms} ms`,
  );
  console.log(
    `realistic turn: ${result.turns_per_cpu_s} per CPU second of the proxy at 64 connections, ${result.turns_per_cpu_s_c1} at 1`,
  );
  console.log(`${result.cpu}, ${result.cores} cores, Node ${result.node}, commit ${result.commit ?? 'unknown'}`);
  if (json) console.log(JSON.stringify(result));
}

function commit() {
  try {
    return execFileSync('git', ['rev-parse', 'HEAD'], {
      cwd: join(SELF, '..'),
      encoding: 'utf8',
      stdio: 'pipe',
    }).trim();
  } catch {
    return null;
  }
}
