// What it costs to make a trajectory of a session's completions: graph, builder, audit, JSON.
//
//   node bench/builder.mjs [--quick] [--json]
//
// Sessions of one agent that goes on turn by turn, half of the tokens sampled, ids over a vocabulary of 151,643, about four
// characters of text to a token. Completions share memory as the proxy leaves them. CPU time of the whole process (user and
// system, the garbage collector's threads included), the median of many runs, after warm-up.
import { RequestMemory } from '../dist/proxy/session/request-memory.js';
import { samplingSchema } from '../dist/schema/index.js';
import { encodeRecords } from '../dist/tokens/records.js';
import { buildTrajectory } from '../dist/tokens/trajectory.js';
import { median, printReport, round } from './report.mjs';

const quick = process.argv.includes('--quick');
/** Runs until the compiler has settled, and measured runs, per size. */
const WARM_UP = 60;
const RUNS = quick ? 15 : 101;
const VOCABULARY = 151_643;
const CLOSE = 151_645;
const CHARS_PER_TOKEN = 4;

/** Turns and tokens of a session, from small to large: the last must not cost more per token than the first. */
const SIZES = [
  [15, 10_000],
  [60, 40_000],
  [100, 100_000],
  [200, 200_000],
  [400, 400_000],
];

/** A repeatable stream of numbers in [0, 1). */
function random(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

const WORDS = 'the file holds a function that reads each line and returns what it finds in "src/main.rs"\n'.split(' ');

function textOf(next, tokens) {
  let text = '';
  while (text.length < tokens * CHARS_PER_TOKEN) text += `${WORDS[Math.floor(next() * WORDS.length)]} `;
  return text;
}

/** What is left of a session: one completion per turn, all prompts views of one buffer. */
export function sessionOf(turns, tokens, sampledShare = 0.5) {
  const next = random(turns * 7 + tokens);
  const perTurn = Math.round(tokens / turns);
  const sampled = Math.round(perTurn * sampledShare);
  const memory = new RequestMemory();
  const history = [];
  const ids = [];
  const push = (count) => {
    for (let i = 0; i < count - 1; i++) ids.push(Math.floor(next() * VOCABULARY));
    ids.push(CLOSE);
  };
  return Array.from({ length: turns }, (_, index) => {
    push(perTurn - sampled);
    const text = textOf(next, perTurn - sampled);
    history.push(
      index === 0 ? { role: 'user', content: text } : { role: 'tool', tool_call_id: `c${index - 1}.0`, content: text },
    );
    const request = memory.request('main', structuredClone(history), []);
    const promptIds = memory.prompt('main', Int32Array.from(ids));
    const from = ids.length;
    push(sampled);
    const message = assistant(index, textOf(next, sampled));
    history.push(message);
    return {
      completionId: `c${index}`,
      sessionId: 'ses_bench',
      attempt: 1,
      index,
      timestampMs: 1_700_000_000_000 + index,
      dialect: 'openai_chat',
      callKind: 'main',
      thread: 'main',
      request: { ...request, samplingAsked: {}, sampling: samplingSchema.parse({}), adjusted: [] },
      capture: {
        mode: 'tokens',
        logprobs_mode: 'processed',
        thinking_retention: 'template',
        spliced_onto: index === 0 ? null : `c${index - 1}`,
        rendered_because: index === 0 ? 'first' : null,
      },
      promptIds,
      responseIds: Int32Array.from(ids.slice(from)),
      responseLogprobs: Float32Array.from({ length: sampled }, () => Math.log(1 - next() ** 3)),
      versionSpans: [{ version: '7', start: 0, end: sampled }],
      routedExperts: null,
      message,
      engineCallIds: [`call_${index}`],
      finishReason: 'tool_calls',
      stop: { kind: 'token', id: CLOSE },
      engineId: 'engine',
      model: 'policy',
      usage: { prompt_tokens: promptIds.length, completion_tokens: sampled, cached_tokens: null },
      engineMs: 1,
      totalMs: 2,
      abandoned: false,
      auxiliary: false,
      undelivered: false,
    };
  });
}

function assistant(index, text) {
  const call = { name: 'shell', arguments: JSON.stringify({ command: text.slice(0, text.length / 2) }) };
  return {
    role: 'assistant',
    content: text.slice(text.length / 2),
    tool_calls: [{ id: `c${index}.0`, type: 'function', function: call }],
  };
}

/** CPU milliseconds of one call, the median of many. */
function cpuMs(work) {
  for (let i = 0; i < WARM_UP; i++) work();
  const times = [];
  for (let i = 0; i < RUNS; i++) {
    const start = process.cpuUsage();
    work();
    const { user, system } = process.cpuUsage(start);
    times.push((user + system) / 1_000);
  }
  return median(times);
}

function measure(turns, tokens, { spec = { strategy: 'prefix_merging', config: {} }, sampledShare } = {}) {
  const completions = sessionOf(turns, tokens, sampledShare);
  const request = { spec, completions, status: 'COMPLETED', reward: 1, error: null, metadata: {} };
  const { json, trainableTokens, audit } = buildTrajectory(request);
  if (audit.exact_context_share !== 1) throw new Error('the session is not exact');
  const ms = cpuMs(() => buildTrajectory(request));
  return { ms, mb: json.length / 1e6, trained: trainableTokens, completions };
}

const rows = [];
const keys = {};
const perToken = [];
for (const [turns, tokens] of SIZES) {
  const { ms, mb, completions } = measure(turns, tokens);
  perToken.push((ms * 1e6) / tokens);
  const label = `${turns} turns, ${tokens / 1000}k tokens`;
  rows.push([label, `${round(ms)} ms`, `${round((ms * 1e6) / tokens, 1)} ns a token, ${round(mb)} MB of JSON`]);
  if (tokens === 40_000) keys.cpu_ms_60x40k = round(ms);
  if (tokens === 200_000) {
    keys.cpu_ms_200x200k = round(ms);
    keys.records_cpu_ms_200x200k = round(cpuMs(() => encodeRecords(completions)));
    rows.push([
      '  its records beside it',
      `${keys.records_cpu_ms_200x200k} ms`,
      'the completions, as the API serves them',
    ]);
    const all = measure(turns, tokens, { sampledShare: 0.95 });
    keys.cpu_ms_200x200k_all_sampled = round(all.ms);
    rows.push(['  with 95 % of it sampled', `${keys.cpu_ms_200x200k_all_sampled} ms`, `${round(all.mb)} MB of JSON`]);
  }
}
// Of the second smallest: a run of the smallest is near the clock's resolution.
keys.ns_per_token_largest_over_60x40k = round(perToken.at(-1) / perToken[1]);
rows.push(['per token, largest to 60 x 40k', keys.ns_per_token_largest_over_60x40k, '1 is linear']);
printReport('Building a trajectory: CPU of graph, builder, audit and JSON', rows, keys);
