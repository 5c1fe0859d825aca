// Runs the proxy as a separate process. With the role `floor`, it instead runs a minimal proxy for comparison, which forwards calls and
// parses request and reply bodies, with node:http, undici and JSON.parse only. Arguments: role, engine URL, directory of the journal.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { CaptureJournal, createEnginePools, createProxy, journalModeSchema, type ProxySession } from '@floe-rl/capture';
import { newSessionKey, systemClock } from '@floe-rl/core';
import { type EngineMode, engineSpecSchema, samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import { Pool } from 'undici';
import { collectGarbage, cpuUs, type Handlers, serveBench } from '../child.ts';

const [, , role, engineUrl = '', directory = '', journalMode = 'sync'] = process.argv;
/** Interval in ms at which the delay of the event loop is sampled. The lag of a sample is how much later than due it was taken. */
const LAG_STEP_MS = 10;
const lag = monitorEventLoopDelay({ resolution: LAG_STEP_MS });
lag.enable();
const lagMs = (ns: number): number => Math.max(0, ns / 1e6 - LAG_STEP_MS);

const COMMON: Handlers = {
  usage: () => ({ us: cpuUs() }),
  memory: () => {
    collectGarbage();
    const { rss, heapUsed, external } = process.memoryUsage();
    return { rssMb: rss / 1e6, heapMb: heapUsed / 1e6, externalMb: external / 1e6 };
  },
  resetLag: () => {
    lag.reset();
    return {};
  },
  lag: () => ({ p50: lagMs(lag.percentile(50)), p99: lagMs(lag.percentile(99)), max: lagMs(lag.max) }),
};

if (role === 'floor') await serveFloor();
else await serveProxy();

async function serveFloor(): Promise<void> {
  const pool = new Pool(engineUrl, { connections: null, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', async () => {
      const body = Buffer.concat(chunks);
      JSON.parse(body.toString());
      const path = (request.url ?? '').replace(/^\/s\/[^/]+/, '');
      const reply = await pool.request({ method: 'POST', path, headers: { 'content-type': 'application/json' }, body });
      const { choices } = JSON.parse(Buffer.from(await reply.body.arrayBuffer()).toString()) as {
        choices: [{ message: object }];
      };
      const small = Buffer.from(JSON.stringify(choices[0].message));
      response.writeHead(reply.statusCode, { 'content-type': 'application/json', 'content-length': small.length });
      response.end(small);
    });
  });
  server.keepAliveTimeout = 60_000;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  serveBench({ port: (server.address() as AddressInfo).port }, COMMON);
}

async function serveProxy(): Promise<void> {
  const clock = systemClock;
  const engines = await createEnginePools([engineSpecSchema.parse({ base_url: engineUrl })], { clock });
  const journal = await CaptureJournal.open(directory, { mode: journalModeSchema.parse(journalMode) });
  const proxy = createProxy({ engines, journal, clock });
  await proxy.listen({ host: '127.0.0.1', port: 0 });
  const sampling = samplingSchema.parse({});
  let sessions: ProxySession[] = [];
  let opened = 0;
  serveBench(
    { port: Number(new URL(proxy.origin).port) },
    {
      ...COMMON,
      /** Opens `count` proxy sessions. The first `sockets` of them get a separate Unix socket. */
      async open({ count, mode, sockets = 0 }: { count: number; mode: EngineMode; sockets?: number }) {
        const engine = taskEngineSchema.parse({ mode });
        const opening: { key: string; sessionId: string; socketPath: string | null }[] = [];
        for (let i = 0; i < count; i++) {
          const key = newSessionKey();
          const sessionId = `ses_${opened++}`;
          const identity = { sessionId, attempt: 0, sampleIndex: 0, modelName: 'policy' };
          const socketPath = i < sockets ? `${directory}/${sessionId}` : null;
          sessions.push(await proxy.open({ ...identity, key, sampling, engine, socketPath }));
          opening.push({ key, sessionId, socketPath });
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
    },
  );
}
