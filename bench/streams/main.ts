// Measures streamed replies: how long the first visible text takes from the engine to the client, and how much streaming costs the proxy and
// the engine.
//
//   npm run bench -- streams [--quick] [--only=CASE,…] [--json]
//
// Three processes: a simulated engine with 8 ms per token, the proxy, and the client. Eight agents at a time receive replies of 800 tokens,
// streamed and complete in turns. The *lag* begins when the engine samples the first id with visible text, and ends when the client has text.
// The floor is the lag of a proxy that relays the text of the engine. `vllm_chat` shows this lag.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { Pool } from 'undici';
import { knownNames } from '../../tools/known-names.ts';
import { type BenchChild, inParallel, startChild } from '../child.ts';
import { CHAT_PATH } from '../proxy/client.ts';
import { median, pairedRatio, percentile, printReport, type ReportRow, round } from '../report.ts';
import { REPLIES, type ReplyName } from './replies.ts';

const isQuick = process.argv.includes('--quick');
const TOKEN_MS = 8;
const AGENTS = 8;
/** Time in ms between the starts of two agents: a reply takes 6.4 s. */
const STAGGER_MS = 800;
const ROUNDS = isQuick ? 1 : 3;
/** The lag within which the first visible text must reach the client, in ms. */
const AIM_MS = 50;

const CASES = {
  vllm_tokens: { mode: 'tokens' },
  vllm_chat: { mode: 'chat' },
} as const;
type CaseName = keyof typeof CASES;

type OpenSession = { readonly key: string; readonly sessionId: string };
type Recorded = {
  readonly firstIdsMs: Readonly<Record<string, number>>;
  readonly parses: number;
  readonly parsedBytes: number;
};
/**
 * Figures of a batch of replies. `lagsMs` is empty for replies that are not streamed. `cpuUs` (the proxy's CPU time), `parses` and
 * `parsedBytes` are per reply.
 */
type Batch = {
  readonly lagsMs: readonly number[];
  readonly cpuUs: number;
  readonly parses: number;
  readonly parsedBytes: number;
};

/** Requests one reply. Resolves to the Unix time in ms at which its first visible text arrived; `null` when it was not streamed. */
async function request(pool: Pool, { key }: OpenSession, reply: ReplyName, stream: boolean): Promise<number | null> {
  const { statusCode, body } = await pool.request({
    method: 'POST',
    path: `/s/${key}${CHAT_PATH}`,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'policy', stream, messages: [{ role: 'user', content: reply }] }),
  });
  let text = '';
  let firstMs: number | null = null;
  for await (const bytes of body) {
    text += bytes;
    if (stream && firstMs === null && /"(reasoning_)?content":"[^"]*[^"\s]/.test(text)) firstMs = systemClock.nowMs();
  }
  if (statusCode !== 200) throw new Error(`status ${statusCode}: ${text.slice(0, 300)}`);
  return firstMs;
}

async function batch(
  { engine, proxy, pool }: { readonly engine: BenchChild; readonly proxy: BenchChild; readonly pool: Pool },
  mode: string,
  stream: boolean,
): Promise<Batch> {
  const { sessions } = (await proxy.request('open', { count: AGENTS, mode })) as { sessions: OpenSession[] };
  await engine.request('take');
  const cpuUs = async (): Promise<number> => ((await proxy.request('usage')) as { us: number }).us;
  const before = await cpuUs();
  const names = Object.keys(REPLIES) as ReplyName[];
  const firstMs = new Map<string, { readonly ms: number; readonly reply: ReplyName }>();
  await inParallel(AGENTS, AGENTS, async (index) => {
    const [session, reply] = [sessions[index], names[index % names.length]];
    if (session === undefined || reply === undefined) throw new RangeError('there are fewer sessions than agents');
    // Agents do not start at the same moment.
    await sleep(systemClock, index * STAGGER_MS);
    const ms = await request(pool, session, reply, stream);
    if (ms !== null) firstMs.set(session.sessionId, { ms, reply });
  });
  const cpu = (await cpuUs()) - before;
  await proxy.request('closeAll');
  const recorded = (await engine.request('take')) as Recorded;
  const lagsMs = [...firstMs].map(([sessionId, { ms, reply }]) => {
    const sentMs = recorded.firstIdsMs[sessionId];
    if (sentMs === undefined) throw new Error('the engine has not recorded when it sent the first ids');
    return ms - sentMs - REPLIES[reply].hiddenIds * TOKEN_MS;
  });
  if (stream && lagsMs.length < AGENTS) throw new Error(`only ${lagsMs.length} of ${AGENTS} replies showed text`);
  return { lagsMs, cpuUs: cpu / AGENTS, parses: recorded.parses / AGENTS, parsedBytes: recorded.parsedBytes / AGENTS };
}

async function runCase(name: CaseName, directory: string) {
  const { mode } = CASES[name];
  const engine = await startChild(new URL('./engine-process.js', import.meta.url), [`${TOKEN_MS}`]);
  const proxy = await startChild(new URL('../proxy/proxy-process.js', import.meta.url), [
    ...['proxy', String(engine.ready.url), directory],
  ]);
  const pool = new Pool(`http://127.0.0.1:${proxy.ready.port}`, {
    connections: AGENTS,
    headersTimeout: 0,
    bodyTimeout: 0,
  });
  try {
    const streamed: Batch[] = [];
    const complete: Batch[] = [];
    // Round 0 is a warm-up and is not counted.
    for (let i = 0; i <= ROUNDS; i++) {
      const ofRound = [
        await batch({ engine, proxy, pool }, mode, true),
        await batch({ engine, proxy, pool }, mode, false),
      ] as const;
      if (i === 0) continue;
      streamed.push(ofRound[0]);
      complete.push(ofRound[1]);
    }
    const lags = streamed.flatMap(({ lagsMs }) => lagsMs);
    const of = (batches: readonly Batch[], key: 'cpuUs' | 'parses' | 'parsedBytes'): number[] =>
      batches.map((each) => each[key]);
    // The complete message is parsed once, and each preview takes two parses.
    const parses = (median(of(streamed, 'parses')) ?? 0) - (median(of(complete, 'parses')) ?? 0);
    return {
      first_delta_lag_p50_ms: round(percentile(lags, 0.5) ?? Number.NaN, 1),
      first_delta_lag_worst_ms: round(Math.max(...lags), 1),
      cpu_streamed_over_complete: shown(pairedRatio(of(streamed, 'cpuUs'), of(complete, 'cpuUs'))?.median),
      cpu_us_streamed: round(median(of(streamed, 'cpuUs')) ?? Number.NaN, 0),
      previews_per_reply: mode === 'tokens' ? round(parses / 2, 1) : 0,
      parsed_over_complete: shown(pairedRatio(of(streamed, 'parsedBytes'), of(complete, 'parsedBytes'))?.median),
    };
  } finally {
    await pool.close();
    await proxy.close();
    await engine.close();
  }
}

const shown = (value: number | undefined): number | null =>
  value === undefined || !Number.isFinite(value) ? null : round(value);

const given = process.argv.find((arg) => arg.startsWith('--only='))?.slice('--only='.length) ?? null;
const only = knownNames('only', given, Object.keys(CASES));
const directory = await mkdtemp(join(tmpdir(), 'floe-bench-'));
try {
  const cases: Partial<Record<CaseName, Awaited<ReturnType<typeof runCase>>>> = {};
  const names = (Object.keys(CASES) as CaseName[]).filter((name) => only === null || only.includes(name));
  for (const name of names) cases[name] = await runCase(name, directory);
  const entries = Object.entries(cases);
  const rows: ReportRow[] = [
    ...entries.map(
      ([name, row]): ReportRow => [`${name}: CPU, streamed / complete`, row.cpu_streamed_over_complete ?? '-'],
    ),
    ...entries.flatMap(([name, row]): ReportRow[] =>
      row.parsed_over_complete === null
        ? []
        : [[`${name}: bytes parsed by the engine, streamed / complete`, row.parsed_over_complete]],
    ),
    ...entries.map(
      ([name, row]): ReportRow => [
        `${name}: lag of the first text`,
        `${row.first_delta_lag_p50_ms} ms`,
        `worst ${row.first_delta_lag_worst_ms} ms; aim: ${AIM_MS} ms; ${row.previews_per_reply} previews, ${row.cpu_us_streamed} us CPU of a reply`,
      ],
    ),
  ];
  const { vllm_tokens: tokens } = cases;
  printReport(`Streamed replies of 800 tokens of ${TOKEN_MS} ms, ${AGENTS} agents at a time`, rows, {
    first_delta_lag_p50_ms: tokens?.first_delta_lag_p50_ms,
    first_delta_lag_worst_ms: tokens?.first_delta_lag_worst_ms,
    cases,
  });
} finally {
  await rm(directory, { recursive: true, force: true });
}
