// What each way of choosing an engine gives, with four engines of which one has half the speed.
//
//   node bench/pool.mjs [--quick]
//
// The pool is the real one; engines and time are simulated, so that a run is the same every time and on every machine. An engine
// here batches as vLLM does: each step gives every reply under way one token and computes a chunk of the prompts that wait; it takes
// a fixed time plus some for each reply and each prompt token. Prompts are looked up in the prefix cache of floe's simulated engine.
// Sessions are those of a coding agent: a prompt that grows with every turn, replies and tool outputs of very different lengths,
// pauses while tools run. As many as fit run at a time; when one ends the next begins.
import { existsSync } from 'node:fs';
import { machine, round } from './report.mjs';

const DIST = new URL('../dist/', import.meta.url);
if (!existsSync(DIST)) throw new Error('dist/ is missing: build first');
const load = (path) => import(new URL(path, DIST).href);

const [{ createEnginePools }, { PrefixCache }, schema] = await Promise.all([
  load('engines/pool/managed-engine-pools.js'),
  load('sim/prefix-cache.js'),
  load('schema/index.js'),
]);

const POLICIES = ['least_in_flight', 'assignment_count', 'consistent_hash'];
/** The min-heap over whole sessions, as ProRL uses it when a job is submitted: the session then stays, whatever its engine's speed. */
const PER_SESSION = 'min-heap/session';
const SPEEDS = [1, 1, 1, 0.5];
const EQUAL = [1, 1, 1, 1];

/** About an 8B model on one accelerator: 100 tokens a second for one reply, 3,000 for 100; 20,000 prompt tokens a second. */
const STEP = { baseMs: 9, perReplyMs: 0.25, perPromptTokenMs: 0.05 };
/** Prompt tokens of one step at most, as vLLM's chunked prefill. */
const PROMPT_CHUNK = 2_048;
/** Replies under way at most, as vLLM's `max_num_seqs`. */
const MAX_REPLIES = 128;
/** Memory for some 400,000 tokens. */
const CACHE_BLOCKS = 24_576;

/** Means; lengths and pauses vary by a factor of about two around them. */
const SESSION = { systemTokens: 2_000, taskTokens: 600, turns: 14, replyTokens: 160, toolTokens: 350, toolMs: 1_500 };
const CONCURRENT = 128;
/** The first part of a run fills caches and batches. */
const WARM_UP_MS = 60_000;
const QUICK_MS = 60_000;
const FULL_MS = 300_000;

// ---- time

/** A clock that jumps from event to event, and lets promises settle in between. */
class EventClock {
  now = 0;
  events = [];
  order = 0;
  monotonicMs() {
    return this.now;
  }
  nowMs() {
    return this.now;
  }
  schedule(delayMs, callback) {
    const event = { at: this.now + Math.max(0, delayMs), order: this.order++, callback };
    let i = this.events.length;
    while (i > 0 && before(event, this.events[i - 1])) i--;
    this.events.splice(i, 0, event);
    return () => {
      event.callback = null;
    };
  }
  async run(untilMs) {
    while (this.events.length > 0 && this.events[0].at <= untilMs) {
      const { at, callback } = this.events.shift();
      this.now = at;
      if (callback?.() === SETTLE) await new Promise((resolve) => setImmediate(resolve));
    }
  }
}
const before = (a, b) => a.at < b.at || (a.at === b.at && a.order < b.order);
/** What an event returns after which promises have something to do. */
const SETTLE = Symbol('settle');

/** Uniform in [0, 1), the same for the same seed (mulberry32). */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Log-normal of this mean, with sigma 0.7. */
function around(mean, next) {
  const gauss = Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
  return Math.max(1, Math.round(mean * Math.exp(0.7 * gauss - 0.245)));
}

// ---- engines

const NO_TEMPLATE = {
  close_ids: [],
  tail_render: false,
  thinking: { tool_results: 'unknown', user_message: 'unknown' },
  fingerprint: null,
};

class BatchingEngine {
  constructor(spec, clock, speed) {
    Object.assign(this, { spec, clock, speed });
    this.cache = new PrefixCache(CACHE_BLOCKS);
    this.waiting = [];
    this.running = [];
    this.stepping = false;
    this.calls = 0;
    this.promptTokens = 0;
    this.cachedTokens = 0;
    this.sampledTokens = 0;
  }

  info() {
    return {
      engine_id: this.spec.engine_id,
      kind: 'vllm',
      base_url: this.spec.base_url,
      pool: this.spec.pool,
      model: 'bench',
      server_version: null,
      max_model_len: null,
      logprobs_mode: 'processed',
      policy_version: null,
      healthy: true,
      streaming: false,
      inflight: this.running.length + this.waiting.length,
      max_concurrency: null,
      capabilities: {
        token_ids: true,
        token_input: 'generate',
        version_spans: false,
        pause: false,
        abort: false,
        cache_salt: false,
        notes: [],
        template: NO_TEMPLATE,
      },
    };
  }

  generate(request) {
    const { ids } = request.prompt;
    return new Promise((resolve) => {
      this.waiting.push({ ids, left: request.maxTokens, uncomputed: null, resolve, request });
      this.step();
    });
  }

  setPolicyVersion() {}

  async close() {}

  step() {
    if (this.stepping) return;
    while (this.running.length < MAX_REPLIES && this.waiting.length > 0) this.running.push(this.admit());
    if (this.running.length === 0) return;
    this.stepping = true;
    let budget = PROMPT_CHUNK;
    let replies = 0;
    for (const call of this.running) {
      if (call.uncomputed === 0) {
        call.sampling = true;
        replies++;
        continue;
      }
      const chunk = Math.min(budget, call.uncomputed);
      call.uncomputed -= chunk;
      budget -= chunk;
    }
    const promptTokens = PROMPT_CHUNK - budget;
    const ms = STEP.baseMs + STEP.perReplyMs * replies + STEP.perPromptTokenMs * promptTokens;
    this.clock.schedule(ms / this.speed, () => this.finishStep());
  }

  admit() {
    const call = this.waiting.shift();
    const cached = this.cache.admit(call.ids, '');
    this.calls++;
    this.promptTokens += call.ids.length;
    this.cachedTokens += cached;
    call.uncomputed = call.ids.length - cached;
    return call;
  }

  finishStep() {
    let ended = false;
    for (const call of this.running) {
      if (!call.sampling) continue;
      call.left--;
      this.sampledTokens++;
      if (call.left > 0) continue;
      ended = true;
      call.resolve(this.replyTo(call));
    }
    this.running = this.running.filter((call) => call.left > 0);
    this.stepping = false;
    this.step();
    return ended ? SETTLE : undefined;
  }

  replyTo({ ids, request }) {
    const count = request.maxTokens;
    const responseIds = Int32Array.from({ length: count }, (_, i) => request.seed + i);
    // What was sampled is in the cache as well, for the next turn.
    const all = new Int32Array(ids.length + count);
    all.set(ids);
    all.set(responseIds, ids.length);
    this.cache.admit(all, '');
    return {
      promptIds: ids,
      responseIds,
      responseLogprobs: new Float32Array(count),
      versionSpans: [{ version: null, start: 0, end: count }],
      routedExperts: null,
      logprobsMode: 'processed',
      message: { role: 'assistant', content: '' },
      finishReason: 'stop',
      stop: null,
      usage: { prompt_tokens: ids.length, completion_tokens: count, cached_tokens: null },
    };
  }
}

// ---- sessions

async function session(pool, clock, index, poolName) {
  const next = random(index * 7_919 + 1);
  const turns = around(SESSION.turns, next);
  let fresh = (index + 1) * 1_000_000;
  const tokens = (mean) => {
    const count = around(mean, next);
    fresh += count;
    return Int32Array.from({ length: count }, (_, i) => fresh + i);
  };
  let history = joined(
    Int32Array.from({ length: SESSION.systemTokens }, (_, i) => i),
    tokens(SESSION.taskTokens),
  );
  for (let turn = 0; turn < turns; turn++) {
    const maxTokens = around(SESSION.replyTokens, next);
    fresh += maxTokens;
    const { reply } = await pool.generate(
      { ...requestOf(index, turn, history, maxTokens, fresh), pool: poolName },
      new AbortController().signal,
    );
    history = joined(history, reply.responseIds, tokens(SESSION.toolTokens));
    const toolMs = around(SESSION.toolMs, next);
    await new Promise((resolve) => {
      clock.schedule(toolMs, () => {
        resolve();
        return SETTLE;
      });
    });
  }
}

function joined(...parts) {
  const all = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

const NO_JSON = Buffer.alloc(0);

function requestOf(index, turn, ids, maxTokens, seed) {
  return {
    completionId: `cpl_${index}_${turn}`,
    sessionId: `ses_${index}`,
    messageTexts: [],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    sampling: schema.samplingSchema.parse({}),
    maxTokens,
    stop: [],
    responseFormat: null,
    seed,
    prompt: { ids, json: NO_JSON },
    resumeFrom: null,
    cacheSalt: null,
  };
}

// ---- runs

async function run(name, speeds, durationMs) {
  const perSession = name === PER_SESSION;
  const policy = perSession ? 'assignment_count' : name;
  const clock = new EventClock();
  const engines = [];
  const connect = async (spec) => {
    const engine = new BatchingEngine(spec, clock, speeds[Number(spec.engine_id.slice(1))]);
    engines.push(engine);
    return engine;
  };
  const specs = speeds.map((_, i) =>
    schema.engineSpecSchema.parse({
      engine_id: `e${i}`,
      base_url: `http://engine-${i}.invalid:8000`,
      // A pool for each engine: the session chooses once, by taking turns, which is what a min-heap over counts comes to.
      pool: perSession ? `pool-${i}` : 'default',
    }),
  );
  const pool = await createEnginePools(specs, { clock, policy, connect });
  let started = 0;
  const another = async () => {
    for (;;) {
      const index = started++;
      await session(pool, clock, index, perSession ? `pool-${index % speeds.length}` : 'default');
    }
  };
  for (let i = 0; i < CONCURRENT; i++) void another();
  await new Promise((resolve) => setImmediate(resolve));
  await clock.run(WARM_UP_MS);
  const first = engines.map(countersOf);
  await clock.run(WARM_UP_MS + durationMs);
  const counts = engines.map((engine, i) => difference(countersOf(engine), first[i]));
  await pool.close();
  const sum = (key) => counts.reduce((total, count) => total + count[key], 0);
  return {
    tokensPerS: sum('sampledTokens') / (durationMs / 1_000),
    shares: counts.map((count) => count.calls / sum('calls')),
    hitRate: sum('cachedTokens') / sum('promptTokens'),
  };
}

const countersOf = ({ calls, promptTokens, cachedTokens, sampledTokens }) => ({
  calls,
  promptTokens,
  cachedTokens,
  sampledTokens,
});

const difference = (a, b) => Object.fromEntries(Object.entries(a).map(([key, value]) => [key, value - b[key]]));

async function table(title, speeds, durationMs) {
  const results = {};
  for (const policy of [...POLICIES, PER_SESSION]) results[policy] = await run(policy, speeds, durationMs);
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
console.log(`${CONCURRENT} sessions at a time, ${durationMs / 1_000} simulated seconds`);
await table('four equal engines', EQUAL, durationMs);
const uneven = await table('one of four at half speed', SPEEDS, durationMs);
const ratio = (results, other) => round(results.least_in_flight.tokensPerS / results[other].tokensPerS);
const hits = Object.fromEntries(POLICIES.map((policy) => [policy, round(uneven[policy].hitRate, 3)]));
console.log(
  `\n${JSON.stringify({
    least_in_flight_over_min_heap: ratio(uneven, 'assignment_count'),
    least_in_flight_over_min_heap_per_session: ratio(uneven, PER_SESSION),
    least_in_flight_over_consistent_hash: ratio(uneven, 'consistent_hash'),
    prefix_hit_rate: hits,
    machine: machine(),
  })}`,
);
