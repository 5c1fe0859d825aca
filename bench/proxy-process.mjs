// The proxy in a process of its own, or, with the role `floor`, the least that stands between a client and an engine and reads what
// goes by: node:http, undici, JSON.parse of both bodies. Forked by bench/proxy.mjs.
import { createServer } from 'node:http';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Pool } from 'undici';

const [, , role, engineUrl, directory] = process.argv;
/** Between two looks at the event loop; what a look comes late is its lag. */
const LAG_STEP_MS = 10;
const lag = monitorEventLoopDelay({ resolution: LAG_STEP_MS });
lag.enable();

const common = {
  usage() {
    const { user, system } = process.cpuUsage();
    return { us: user + system };
  },
  memory() {
    // Twice: what the first frees may hold what the second can free.
    globalThis.gc();
    globalThis.gc();
    const { rss, heapUsed, external } = process.memoryUsage();
    return { rssMb: rss / 1e6, heapMb: heapUsed / 1e6, externalMb: external / 1e6 };
  },
  resetLag() {
    lag.reset();
    return {};
  },
  lag: () => ({ p50: lagAt(50), p99: lagAt(99), max: Math.max(0, lag.max / 1e6 - LAG_STEP_MS) }),
};
const lagAt = (percent) => Math.max(0, lag.percentile(percent) / 1e6 - LAG_STEP_MS);

const { port, answers } = role === 'floor' ? await serveFloor() : await serveProxy();
process.on('message', async ({ ask, kind, ...message }) => {
  process.send({ ask, ...(await { ...common, ...answers }[kind](message)) });
});
process.on('disconnect', () => process.exit());
process.send({ port });

async function serveFloor() {
  const pool = new Pool(engineUrl, { connections: null, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
  const server = createServer((request, response) => {
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', async () => {
      const body = Buffer.concat(chunks);
      JSON.parse(body.toString());
      const path = request.url.replace(/^\/s\/[^/]+/, '');
      const headers = { 'content-type': 'application/json' };
      const reply = await pool.request({ method: 'POST', path, headers, body });
      const bytes = Buffer.from(await reply.body.arrayBuffer());
      const { choices } = JSON.parse(bytes.toString());
      const small = Buffer.from(JSON.stringify(choices[0].message));
      response.writeHead(reply.statusCode, { 'content-type': 'application/json', 'content-length': small.length });
      response.end(small);
    });
  });
  server.keepAliveTimeout = 60_000;
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { port: server.address().port, answers: {} };
}

async function serveProxy() {
  const [{ createEnginePools }, { CaptureJournal }, { createProxy }, { systemClock }, { newSessionKey }, schema] =
    await Promise.all(
      [
        'engines/pool/managed-engine-pools',
        'proxy/journal/journal',
        'proxy/http/proxy',
        'core/clock',
        'core/ids',
        'schema/index',
      ].map((name) => import(`../dist/${name}.js`)),
    );
  const clock = systemClock;
  const engines = await createEnginePools([schema.engineSpecSchema.parse({ base_url: engineUrl })], { clock });
  const journal = await CaptureJournal.open(directory);
  const proxy = createProxy({ engines, journal, clock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const sampling = schema.samplingSchema.parse({});
  let sessions = [];
  let opened = 0;
  const answers = {
    /** `sockets`: so many of the sessions get one of their own. */
    async open({ count, mode, sockets = 0 }) {
      const engine = schema.taskEngineSchema.parse({ mode });
      const opening = [];
      for (let i = 0; i < count; i++) {
        const key = newSessionKey();
        const name = `ses_${opened++}`;
        const identity = { sessionId: name, attempt: 0, sampleIndex: 0, modelName: 'policy' };
        const socketPath = i < sockets ? `${directory}/${name}` : null;
        sessions.push(await proxy.open({ ...identity, key, sampling, engine, socketPath }));
        opening.push({ key, socketPath });
      }
      return { sessions: opening };
    },
    async closeAll() {
      const completions = sessions.flatMap((session) => session.completions());
      const spliced = completions.filter(({ capture }) => capture.spliced_onto !== null).length;
      for (const session of sessions) {
        await session.close();
        await journal.release(session.sessionId, session.attempt);
      }
      sessions = [];
      return { completions: completions.length, spliced };
    },
  };
  return { port: Number(new URL(proxy.origin).port), answers };
}
