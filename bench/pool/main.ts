// Compares policies for choosing an engine. The bench runs four simulated engines, first all with the same speed, then one with half the
// speed.
//
//   npm run bench -- pool [--quick]
//
// The engine pool is floe's own. Engines and time are simulated, so a run has the same result every time and on every machine. A simulated
// engine batches as vLLM does: each step adds one token to every running reply and computes a chunk of the waiting prompts. A step takes a
// fixed time, plus a time for each reply and each prompt token. The prefix cache is the cache of floe's simulated engine.
//
// The sessions resemble sessions of a coding agent. The prompt grows with every turn, the lengths of replies and tool outputs vary widely, and
// tools cause pauses. The number of concurrent sessions is fixed: when one session ends, another starts.

import { createEnginePools, type EnginePools } from '@floe-rl/capture';
import { seededRandom } from '@floe-rl/core';
import { type EngineSpec, type EngineSpecInput, engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import type { Engine, GenerateRequest } from '#capture/engines/engine';
import { machine, round } from '../report.ts';

import { BatchingEngine, type Counters, joined, settled, Timeline } from './batching-engine.ts';
import { LIES, type Lie, LyingEngine } from './lying-engine.ts';

const POLICIES = ['least_in_flight', 'assignment_count', 'consistent_hash'] as const;
/**
 * Name of the policy that assigns whole sessions to engines with a min-heap, as ProRL does when a job is submitted. A session stays on its
 * engine even when the engine is slow.
 */
const PER_SESSION = 'min-heap/session';
type PolicyName = (typeof POLICIES)[number] | typeof PER_SESSION;

const SPEEDS = [1, 1, 1, 0.5];
const EQUAL = [1, 1, 1, 1];

/**
 * Mean values of a simulated session. The lengths and pauses of each session vary around these means, typically by a factor of up to two.
 */
const SESSION = { systemTokens: 2_000, taskTokens: 600, turns: 14, replyTokens: 160, toolTokens: 350, toolMs: 1_500 };
type SessionShape = typeof SESSION;
/** Sessions with long replies. While they run, their cache use grows far beyond the size of their prompts. */
const LONG_REPLIES: SessionShape = { ...SESSION, systemTokens: 300, taskTokens: 200, turns: 4, replyTokens: 1_500 };
const CONCURRENT = 128;
/**
 * The part about limits of concurrent calls: one engine whose running replies and cached prefixes share 6,144 blocks of 16 tokens, and sessions
 * that need several times as much. The server preempts the newest replies when their tokens do not fit, and computes them again later.
 */
const LIMITED = { cacheBlocks: 6_144, concurrent: 192 };
/** Duration in ms of the first part of a run. It is not measured, because caches and batches are still filling. */
const WARM_UP_MS = 60_000;
const QUICK_MS = 60_000;
const FULL_MS = 300_000;

/** Returns a log-normal random number with the mean `mean` and sigma 0.7, rounded to a whole number of at least 1. */
function around(mean: number, random: () => number): number {
  const gauss = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Math.max(1, Math.round(mean * Math.exp(0.7 * gauss - 0.245)));
}

/** Simulates one session of a coding agent, from its first model call to its last. */
async function runSession(
  pools: EnginePools,
  timeline: Timeline,
  index: number,
  { pool, shape = SESSION }: { readonly pool: string; readonly shape?: SessionShape },
): Promise<void> {
  const random = seededRandom(index * 7_919 + 1);
  const turns = around(shape.turns, random);
  let nextId = (index + 1) * 1_000_000;
  const newTokens = (mean: number): Int32Array => {
    const count = around(mean, random);
    nextId += count;
    return Int32Array.from({ length: count }, (_, i) => nextId + i);
  };
  let history = joined(
    Int32Array.from({ length: shape.systemTokens }, (_, i) => i),
    newTokens(shape.taskTokens),
  );
  for (let turn = 0; turn < turns; turn++) {
    const maxTokens = around(shape.replyTokens, random);
    nextId += maxTokens;
    const request = requestOf({ index, turn, ids: history, maxTokens, seed: nextId, pool });
    const { reply } = await pools.generate(request, new AbortController().signal);
    history = joined(history, reply.responseIds, newTokens(shape.toolTokens));
    await timeline.pause(around(shape.toolMs, random));
  }
}

type CallSpec = {
  readonly index: number;
  readonly turn: number;
  readonly ids: Int32Array;
  readonly maxTokens: number;
  readonly seed: number;
  readonly pool: string;
};

function requestOf({ index, turn, ids, maxTokens, seed, pool }: CallSpec): GenerateRequest {
  return {
    completionId: `cpl_${index}_${turn}`,
    sessionId: `ses_${index}`,
    pool,
    messageTexts: [],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    sampling: samplingSchema.parse({}),
    maxTokens,
    stop: [],
    responseFormat: null,
    seed,
    // The simulated engine reads only the prompt's ids, so the JSON text of the prompt is empty.
    prompt: { ids, json: Buffer.alloc(0) },
    resumeFrom: null,
    policyVersion: null,
  };
}

type Result = { readonly tokensPerS: number; readonly shares: readonly number[]; readonly hitRate: number };

async function run(name: PolicyName, speeds: readonly number[], durationMs: number): Promise<Result> {
  const isPerSession = name === PER_SESSION;
  const timeline = new Timeline();
  const engines: BatchingEngine[] = [];
  const connect = async (spec: EngineSpec): Promise<Engine> => {
    const engine = new BatchingEngine(spec, timeline, speeds[engines.length] ?? 1);
    engines.push(engine);
    return engine;
  };
  const specs = speeds.map((_, i) =>
    engineSpecSchema.parse({
      engine_id: `e${i}`,
      base_url: `http://engine-${i}.invalid:8000`,
      // For the policy `PER_SESSION`, each engine gets its own pool, and sessions are assigned to the pools in rotation. This has the same
      // effect as a min-heap over session counts.
      pool: isPerSession ? `pool-${i}` : 'default',
    }),
  );
  const pools = await createEnginePools(specs, {
    clock: timeline.clock,
    policy: isPerSession ? 'assignment_count' : name,
    connect,
  });
  let started = 0;
  const lane = async (): Promise<never> => {
    for (;;) {
      const index = started++;
      await runSession(pools, timeline, index, { pool: isPerSession ? `pool-${index % speeds.length}` : 'default' });
    }
  };
  for (let i = 0; i < CONCURRENT; i++) void lane();
  await settled();
  await timeline.run(WARM_UP_MS);
  const before = engines.map(({ counters }) => counters);
  await timeline.run(WARM_UP_MS + durationMs);
  const after = engines.map(({ counters }) => counters);
  await pools.close();
  const counts = (key: keyof Counters): number[] => after.map((one, i) => one[key] - (before[i]?.[key] ?? 0));
  const sum = (key: keyof Counters): number => counts(key).reduce((total, count) => total + count, 0);
  return {
    tokensPerS: sum('sampledTokens') / (durationMs / 1_000),
    shares: counts('calls').map((count) => count / sum('calls')),
    hitRate: sum('cachedTokens') / sum('promptTokens'),
  };
}

type LimitResult = { readonly tokensPerS: number; readonly preemptions: number; readonly limit: number | null };

/** Runs the sessions on one engine whose concurrent calls are limited. */
async function runLimited(
  limits: Pick<EngineSpecInput, 'max_concurrency' | 'adaptive_concurrency'>,
  durationMs: number,
): Promise<LimitResult> {
  const timeline = new Timeline();
  const engines: BatchingEngine[] = [];
  const connect = async (spec: EngineSpec): Promise<Engine> => {
    const engine = new BatchingEngine(spec, timeline, 1, LIMITED.cacheBlocks);
    engines.push(engine);
    return engine;
  };
  const spec = engineSpecSchema.parse({ engine_id: 'e', base_url: 'http://engine.invalid:8000', ...limits });
  const pools = await createEnginePools([spec], { clock: timeline.clock, connect });
  let started = 0;
  const lane = async (): Promise<never> => {
    for (;;) await runSession(pools, timeline, started++, { pool: 'default', shape: LONG_REPLIES });
  };
  // When the pools close, sessions that wait for a slot fail.
  for (let i = 0; i < LIMITED.concurrent; i++) lane().catch(() => {});
  await settled();
  await timeline.run(2 * WARM_UP_MS);
  const [before] = engines.map(({ counters }) => counters);
  await timeline.run(2 * WARM_UP_MS + durationMs);
  const [after] = engines.map(({ counters }) => counters);
  const limit = pools.info()[0]?.max_concurrency ?? null;
  await pools.close();
  const grown = (key: keyof Counters): number => (after?.[key] ?? 0) - (before?.[key] ?? 0);
  return { tokensPerS: grown('sampledTokens') / (durationMs / 1_000), preemptions: grown('preemptions'), limit };
}

const FIXED_LIMITS = [4, 8, 16, 24, 32, 48, 64, 192];

async function measureLimits(durationMs: number): Promise<Readonly<Record<string, LimitResult>>> {
  const results: Record<string, LimitResult> = {};
  for (const limit of FIXED_LIMITS)
    results[`fixed ${limit}`] = await runLimited({ max_concurrency: limit }, durationMs);
  results.adaptive = await runLimited({ adaptive_concurrency: { min: 2, max: 512 } }, durationMs);
  console.log(`\none engine with a small cache, ${LIMITED.concurrent} concurrent sessions\n`);
  console.log('limit      tokens/s  preemptions  last limit');
  for (const [name, { tokensPerS, preemptions, limit }] of Object.entries(results)) {
    const cells = [name.padEnd(9), tokensPerS.toFixed(0).padStart(9), String(preemptions).padStart(12)];
    console.log([...cells, String(limit).padStart(11)].join(' '));
  }
  return results;
}

/** Engines of the part about an engine whose reported load is wrong; the first one lies. */
const LYING = { engines: 4, concurrent: 4 * 96 };

/** Returns tokens per second of four adaptive engines. The first engine lies about its load, unless `lie` is `null`. */
async function runLying(lie: Lie | null, durationMs: number): Promise<number> {
  const timeline = new Timeline();
  const engines: BatchingEngine[] = [];
  const connect = async (spec: EngineSpec): Promise<Engine> => {
    const engine =
      lie !== null && engines.length === 0
        ? new LyingEngine(lie, spec, timeline, LIMITED.cacheBlocks)
        : new BatchingEngine(spec, timeline, 1, LIMITED.cacheBlocks);
    engines.push(engine);
    return engine;
  };
  const specs = Array.from({ length: LYING.engines }, (_, i) =>
    engineSpecSchema.parse({
      engine_id: `e${i}`,
      base_url: `http://engine-${i}.invalid:8000`,
      adaptive_concurrency: { min: 2, max: 512 },
    }),
  );
  const pools = await createEnginePools(specs, { clock: timeline.clock, connect });
  let started = 0;
  const lane = async (): Promise<never> => {
    for (;;) await runSession(pools, timeline, started++, { pool: 'default', shape: LONG_REPLIES });
  };
  // When the pools close, sessions that wait for a slot fail.
  for (let i = 0; i < LYING.concurrent; i++) lane().catch(() => {});
  await settled();
  await timeline.run(2 * WARM_UP_MS);
  const sampled = (): number => engines.reduce((sum, { counters }) => sum + counters.sampledTokens, 0);
  const before = sampled();
  await timeline.run(2 * WARM_UP_MS + durationMs);
  const after = sampled();
  await pools.close();
  return (after - before) / (durationMs / 1_000);
}

/** Measures the throughput with each kind of lie. Resolves to the worst: honest over lying. */
async function measureLies(durationMs: number): Promise<number> {
  const honest = await runLying(null, durationMs);
  console.log(`\n${LYING.engines} engines with adaptive limits, one of which reports a wrong load\n`);
  console.log('report             tokens/s  honest over that');
  console.log(`${'honest'.padEnd(17)} ${honest.toFixed(0).padStart(9)}`);
  let worst = 1;
  for (const lie of LIES) {
    const rate = await runLying(lie, durationMs);
    worst = Math.max(worst, honest / rate);
    console.log(`${lie.padEnd(17)} ${rate.toFixed(0).padStart(9)}  ${(honest / rate).toFixed(2).padStart(16)}`);
  }
  return worst;
}

type Results = Readonly<Record<PolicyName, Result>>;

async function measure(title: string, speeds: readonly number[], durationMs: number): Promise<Results> {
  const results: Results = {
    least_in_flight: await run('least_in_flight', speeds, durationMs),
    assignment_count: await run('assignment_count', speeds, durationMs),
    consistent_hash: await run('consistent_hash', speeds, durationMs),
    [PER_SESSION]: await run(PER_SESSION, speeds, durationMs),
  };
  const base = results.assignment_count.tokensPerS;
  console.log(`\n${title}\n`);
  console.log('policy            tokens/s  to min-heap  prefix hits  share of calls per engine');
  for (const [policy, { tokensPerS, shares, hitRate }] of Object.entries(results)) {
    const cells = [
      policy.padEnd(16),
      tokensPerS.toFixed(0).padStart(9),
      (tokensPerS / base).toFixed(2).padStart(12),
      `${(hitRate * 100).toFixed(1)} %`.padStart(12),
      ` ${shares.map((share) => `${(share * 100).toFixed(0)} %`.padStart(5)).join(' ')}`,
    ];
    console.log(cells.join(' '));
  }
  return results;
}

const durationMs = process.argv.includes('--quick') ? QUICK_MS : FULL_MS;
console.log(`${CONCURRENT} concurrent sessions, ${durationMs / 1_000} simulated seconds`);
await measure('four equal engines', EQUAL, durationMs);
const uneven = await measure('one of four at half speed', SPEEDS, durationMs);
const limited = await measureLimits(durationMs);
const worstLie = await measureLies(durationMs);
const rateAt = (name: string): number => limited[name]?.tokensPerS ?? Number.NaN;
const bestFixed = Math.max(...FIXED_LIMITS.map((limit) => rateAt(`fixed ${limit}`)));
const ratioTo = (other: PolicyName): number => round(uneven.least_in_flight.tokensPerS / uneven[other].tokensPerS);
console.log(
  `\n${JSON.stringify({
    least_in_flight_over_min_heap: ratioTo('assignment_count'),
    least_in_flight_over_min_heap_per_session: ratioTo(PER_SESSION),
    least_in_flight_over_consistent_hash: ratioTo('consistent_hash'),
    prefix_hit_rate: Object.fromEntries(POLICIES.map((policy) => [policy, round(uneven[policy].hitRate, 3)])),
    adaptive_over_best_fixed: round(rateAt('adaptive') / bestFixed),
    adaptive_over_too_high: round(rateAt('adaptive') / rateAt(`fixed ${LIMITED.concurrent}`)),
    adaptive_over_too_low: round(rateAt('adaptive') / rateAt(`fixed ${FIXED_LIMITS[0]}`)),
    honest_over_lying_engine: round(worstLie),
    machine: machine(),
  })}`,
);
