// Measures floe's own agents:
// - the time that a model call without HTTP adds to the engine's time, compared with a model call over HTTP;
// - Sokoban episodes per second;
// - memory and timeouts of 1,024 episodes at once;
// - the effect on other episodes of a plug-in that blocks its process;
// - searches in documents and code.
//
//   npm run bench -- envs [--json]
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { findEnvironment } from '@floe-rl/agents';
import { openAppendFile } from '@floe-rl/capture';
import { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import type { GatewayConfigInput } from '@floe-rl/node';
import { playedScenarios, type ScenarioInput } from '#floe/testing/index';
import { resultsOf } from '../../verify/envs/results.ts';
import { type BenchChild, startChild } from '../child.ts';
import { median, percentile, printReport, type ReportRow, round } from '../report.ts';
import { type CodeSearchTimes, measureCodeSearch, measureSearch } from './search.ts';

const ASKS = 200;
/**
 * Sessions of {@link ASKS} calls that are made before the measurement. After them the code of a node is compiled as well as after a minute of
 * work.
 */
const WARM_SESSIONS = 10;
const ROUNDS = 3;
/** Size in bytes of a write that stands for the record of a completion. */
const RECORD_BYTES = 700;
const WRITES = 500;
const SOKOBAN_EPISODES = 600;
/** Rooms of Sokoban. Among the first seeds, the rooms that take {@link TURNS} turns are played. */
const SOKOBAN = { num_boxes: 2 };
const TURNS = 10;
const SEEDS = 200;
const AT_ONCE = 1_024;
const BLOCK_MS = 5_000;
/** Delay of a token in the part with many episodes at once, so that all of them are running at the same time. */
const SLOW_TOKEN_MS = 400;

type Stack = {
  readonly client: FloeClient;
  readonly node: BenchChild;
  readonly engine: BenchChild;
  close(): Promise<void>;
};

const dir = await mkdtemp(join(tmpdir(), 'floe-bench-envs-'));

async function startStack(sim: Record<string, unknown>, node: Partial<GatewayConfigInput> = {}): Promise<Stack> {
  const engine = await startChild(new URL('./engine-process.js', import.meta.url), [JSON.stringify(sim)]);
  const config: Partial<GatewayConfigInput> = {
    engines: [{ base_url: String(engine.ready.url) }],
    harness_dir: join(dir, 'harnesses'),
    default_backend: 'none',
    pools: { init: 16, ready: 16, run: 64, postrun: 16 },
    plugins: { agents: { asker: fileURLToPath(new URL('./asker-agent.js', import.meta.url)) } },
    ...node,
  };
  const child = await startChild(new URL('../sessions/stack-process.js', import.meta.url), [
    JSON.stringify(config),
    JSON.stringify({ plugins: ['asker', 'blocker'] }),
  ]);
  const client = new FloeClient({ url: String(child.ready.url) });
  return {
    client,
    node: child,
    engine,
    async close() {
      await client.close();
      await child.close();
      await engine.close();
    },
  };
}

const WORDS: ScenarioInput[] = [{ name: 'words', rules: [{ reply: [{ text: 'right' }] }] }];

function asking(options: Record<string, unknown>, more: Partial<TaskRequestInput> = {}): TaskRequestInput {
  return {
    instruction: '',
    agent: { harness: 'floe', settings: { agent: 'asker', options } },
    max_attempts: 1,
    ...more,
  };
}

/** The part of a recorded completion that the bench reads. */
type RecordedCall = { readonly timings: { readonly engine_ms: number } };

/** Returns the time that each call added to the time of the engine, in milliseconds. The first calls are left out. */
async function addedMs(client: FloeClient, result: SessionResult | undefined, file: string): Promise<number[]> {
  if (result === undefined || result.outcome !== 'completed')
    throw new Error(`the session failed: ${result?.error?.message}`);
  const times = JSON.parse(await readFile(file, 'utf8')) as number[];
  const calls = JSON.parse((await client.completions(result.session_id)).toString()) as readonly RecordedCall[];
  const engineMs = calls.map(({ timings }) => timings.engine_ms);
  return times.map((time, index) => time - (engineMs[index] ?? Number.NaN)).slice(20);
}

async function measureAdded(): Promise<{ direct: number[]; http: number[] }> {
  const stack = await startStack({ scenarios: WORDS }, { allow_local: true });
  try {
    const direct: number[] = [];
    const http: number[] = [];
    const program = fileURLToPath(new URL('./http-asker.js', import.meta.url));
    const directFile = join(dir, 'direct');
    const httpFile = join(dir, 'http');
    const ofDirect = asking({ asks: ASKS, file: directFile });
    const ofHttp: TaskRequestInput = {
      instruction: '',
      max_attempts: 1,
      runtime: { backend: 'local' },
      agent: { harness: 'shell', custom_shell: `'${process.execPath}' '${program}' ${ASKS} '${httpFile}'` },
    };
    for (let session = 0; session < WARM_SESSIONS; session++) await resultsOf(stack.client, [ofDirect, ofHttp]);
    // The two kinds of sessions alternate, so that other programs on the machine affect both alike.
    for (let round = 0; round < ROUNDS; round++) {
      const [directResult] = await resultsOf(stack.client, [ofDirect]);
      direct.push(...(await addedMs(stack.client, directResult, directFile)));
      const [httpResult] = await resultsOf(stack.client, [ofHttp]);
      http.push(...(await addedMs(stack.client, httpResult, httpFile)));
    }
    return { direct, http };
  } finally {
    await stack.close();
  }
}

/** Returns the time of a durable write alone, which every call contains, p50 in milliseconds. */
async function measureDurableWrite(): Promise<number> {
  const file = await openAppendFile(join(dir, 'writes'));
  const times: number[] = [];
  for (let index = 0; index < WRITES; index++) {
    const startedMs = systemClock.monotonicMs();
    await file.append(Buffer.alloc(RECORD_BYTES, 'x'));
    times.push(systemClock.monotonicMs() - startedMs);
  }
  await file.close();
  return median(times) ?? Number.NaN;
}

async function measureSokoban(): Promise<{ perSecond: number; turns: number; floeCpuMs: number }> {
  const environment = findEnvironment('sokoban');
  const seeds = Array.from({ length: SEEDS }, (_, seed) => seed).filter(
    (seed) => environment.perfectPlay?.(environment.config.parse(SOKOBAN), seed).replies.length === TURNS,
  );
  if (seeds.length === 0) throw new Error(`no game of ${SEEDS} takes ${TURNS} turns`);
  const mark = (seed: number): string => `Game ${seed}.`;
  const scenarios = await Promise.all(
    seeds.map((seed) => playedScenarios({ environment, config: SOKOBAN, seed, mark: mark(seed) })),
  );
  const stack = await startStack({ scenarios: scenarios.flat() });
  try {
    const tasks = seeds.map(
      (seed): TaskRequestInput => ({
        instruction: '',
        num_samples: Math.ceil(SOKOBAN_EPISODES / seeds.length),
        agent: { harness: 'floe', system_prompt: mark(seed), settings: { agent: 'gym' } },
        environment: { type: 'sokoban', config: SOKOBAN, seed },
        evaluator: { strategy: 'environment' },
        max_attempts: 1,
      }),
    );
    const before = (await stack.node.request('usage')).cpuMs as number;
    const startedMs = systemClock.monotonicMs();
    const results = await resultsOf(stack.client, tasks);
    const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
    const cpuMs = ((await stack.node.request('usage')).cpuMs as number) - before;
    const lost = results.filter(({ reward }) => reward !== 1).length;
    if (lost > 0) throw new Error(`${lost} episodes did not get the reward 1`);
    const turns = results.reduce((sum, { agent }) => sum + (agent?.turns ?? 0), 0);
    return { perSecond: results.length / seconds, turns: turns / results.length, floeCpuMs: cpuMs / results.length };
  } finally {
    await stack.close();
  }
}

/** Resolves with the memory of server and node together and of their child processes, in KiB. */
async function residentKib(node: BenchChild): Promise<{ readonly own: number; readonly children: number }> {
  const { rss, childrenKib } = await node.request('usage');
  return { own: (rss as number) / 1024, children: childrenKib as number };
}

type Many = { readonly timeouts: number; readonly agentKib: number; readonly nodeKib: number };

async function measureMany(): Promise<Many> {
  const pools = { init: 64, ready: 64, run: AT_ONCE, postrun: 16 };
  const stack = await startStack({ scenarios: WORDS, tokenDelayMs: SLOW_TOKEN_MS, maxNumSeqs: AT_ONCE }, { pools });
  try {
    await resultsOf(stack.client, [asking({ asks: 2 }, { num_samples: 16 })]);
    const before = await residentKib(stack.node);
    const done = resultsOf(stack.client, [asking({ asks: 8 }, { num_samples: AT_ONCE })]);
    let running = 0;
    while (running < AT_ONCE) {
      await sleep(systemClock, 200);
      running = (await stack.client.status()).sessions.RUNNING ?? 0;
    }
    const during = await residentKib(stack.node);
    const results = await done;
    return {
      timeouts: results.filter(({ outcome }) => outcome !== 'completed').length,
      agentKib: (during.children - before.children) / AT_ONCE,
      nodeKib: (during.own - before.own) / AT_ONCE,
    };
  } finally {
    await stack.close();
  }
}

/** Returns the ratio of the 99th percentiles of the time of a call, while an agent of another process blocks and without it. */
async function measureBlocking(): Promise<number> {
  const plugins = {
    agents: {
      asker: fileURLToPath(new URL('./asker-agent.js', import.meta.url)),
      blocker: fileURLToPath(new URL('./asker-agent.js', import.meta.url)),
    },
  };
  const stack = await startStack({ scenarios: WORDS, tokenDelayMs: 1 }, { plugins });
  try {
    const p99Of = async (name: string, withBlocker: boolean): Promise<number> => {
      const file = join(dir, name);
      const blocker: TaskRequestInput = {
        ...asking({}),
        agent: { harness: 'floe', settings: { agent: 'blocker', options: { asks: 2, block_ms: BLOCK_MS } } },
      };
      const tasks = [asking({ asks: 1_000, file }), ...(withBlocker ? [blocker] : [])];
      await resultsOf(stack.client, tasks);
      return percentile(JSON.parse(await readFile(file, 'utf8')) as number[], 0.99) ?? Number.NaN;
    };
    await p99Of('warm', true);
    return (await p99Of('with', true)) / (await p99Of('without', false));
  } finally {
    await stack.close();
  }
}

function sizeOf({ files, bytes, firstCpuMs }: CodeSearchTimes): string {
  return `${files} files, ${round(bytes / 1e6, 1)} MB, CPU ${round(firstCpuMs)} ms`;
}

try {
  const { direct, http } = await measureAdded();
  const sokoban = await measureSokoban();
  const many = await measureMany();
  const blocking = await measureBlocking();
  const durableWriteMs = await measureDurableWrite();
  const search = await measureSearch();
  const code = await measureCodeSearch();
  const keys = {
    direct_added_p50_ms: round(median(direct) ?? Number.NaN, 3),
    http_added_p50_ms: round(median(http) ?? Number.NaN, 3),
    sokoban_episodes_per_s: round(sokoban.perSecond, 1),
    timeouts_1024: many.timeouts,
    kb_per_episode: round(many.agentKib, 1),
    blocking_neighbour_ratio: round(blocking, 2),
    durable_write_p50_ms: round(durableWriteMs, 3),
    search_p50_ms: round(search.p50Ms, 2),
    search_cpu_ms: round(search.cpuMs, 2),
    rank_bm25_p50_ms: search.rankP50Ms === null ? null : round(search.rankP50Ms),
    code_search_first_ms: code === null ? null : round(code.firstMs),
    code_search_cached_ms: code === null ? null : round(code.cachedMs),
    code_search_next_ms: code === null ? null : round(code.nextMs),
  };
  const rows: ReportRow[] = [
    ['direct call, added p50 ms', keys.direct_added_p50_ms, `${direct.length} calls`],
    ['a durable write alone, which each call contains, p50 ms', keys.durable_write_p50_ms, `${RECORD_BYTES} bytes`],
    ['call over HTTP, added p50 ms', keys.http_added_p50_ms, `${http.length} calls`],
    ['Sokoban episodes per second', keys.sokoban_episodes_per_s, `${round(sokoban.turns, 1)} turns each`],
    ['CPU ms of server and node per episode', round(sokoban.floeCpuMs, 1)],
    [`${AT_ONCE} episodes at once: timeouts`, keys.timeouts_1024],
    ['KiB of the process of the agents per episode', keys.kb_per_episode],
    ['KiB of server and node per episode', round(many.nodeKib, 1)],
    ['p99 of a call beside a blocked process', keys.blocking_neighbour_ratio, 'ratio to without'],
    ['search in documents, p50 ms', keys.search_p50_ms, `CPU ${keys.search_cpu_ms} ms, p99 ${round(search.p99Ms)} ms`],
    ['rank_bm25, p50 ms', keys.rank_bm25_p50_ms ?? '-', 'the same documents and queries'],
    ['index of documents, ms', round(search.buildMs), '50,000 documents'],
    ['search in code, first, ms', keys.code_search_first_ms ?? '-', code === null ? '' : sizeOf(code)],
    ['search in code, cached, ms', keys.code_search_cached_ms ?? '-', 'another process, the same code'],
    ['search in code, next, p50 ms', keys.code_search_next_ms ?? '-', 'the same session'],
  ];
  printReport("floe's own agents", rows, keys);
} finally {
  await rm(dir, { recursive: true, force: true });
}
