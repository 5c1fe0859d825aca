// Measures the CPU time of building a trajectory from a session's completions: token graph, traces, audit and JSON.
//
//   npm run bench -- builder [--quick] [--json]
//
// Each measured session has one agent, whose prompts each continue the previous turn. Half of the session's tokens are sampled. Token ids
// are drawn from a vocabulary of 151,643, and a token has about four characters of text. The prompts of a session are views of one buffer,
// as in the proxy. The results are medians over many runs after a warm-up. The CPU time is that of the whole process, including the garbage
// collector's threads.
import { RequestMemory } from '../src/proxy/session/request-memory.ts';
import { type AssistantMessage, type ChatMessage, samplingSchema } from '../src/schema/index.ts';
import type { Completion } from '../src/tokens/completion.ts';
import { NO_IMAGES } from '../src/tokens/images.ts';
import { encodeRecords } from '../src/tokens/records.ts';
import { buildTrajectory } from '../src/tokens/trajectory.ts';
import { medianCpuMs } from './cpu-time.ts';
import { printReport, type ReportRow, round } from './report.ts';

const isQuick = process.argv.includes('--quick');
/** Number of runs before the measured runs, so that the JIT compiler has optimised the code. */
const WARM_UP = 60;
const RUNS = isQuick ? 15 : 101;
const VOCABULARY = 151_643;
const CLOSE = 151_645;
const CHARS_PER_TOKEN = 4;

/**
 * Number of turns and of tokens of each measured session, in ascending order. The bench reports whether the cost per token stays constant
 * as sessions grow.
 */
const SIZES: readonly (readonly [turns: number, tokens: number])[] = [
  [15, 10_000],
  [60, 40_000],
  [100, 100_000],
  [200, 200_000],
  [400, 400_000],
];

/**
 * Returns a generator of pseudorandom numbers from 0 inclusive to 1 exclusive, which depend only on the seed. It is a linear congruential
 * generator, because that kind is fast.
 */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

const WORDS = 'the file holds a function that reads each line and returns what it finds in "src/main.rs"\n'.split(' ');

function textOf(next: () => number, tokens: number): string {
  let text = '';
  while (text.length < tokens * CHARS_PER_TOKEN) text += `${WORDS[Math.floor(next() * WORDS.length)]} `;
  return text;
}

/**
 * Returns the completions of a session with the given number of turns and tokens, one completion per turn. The prompt ids of all
 * completions are views of one buffer.
 */
function sessionOf(turns: number, tokens: number, sampledShare = 0.5): Completion[] {
  const next = random(turns * 7 + tokens);
  const perTurn = Math.round(tokens / turns);
  const sampled = Math.round(perTurn * sampledShare);
  const memory = new RequestMemory();
  const history: ChatMessage[] = [];
  const ids: number[] = [];
  const push = (count: number): void => {
    for (let i = 0; i < count - 1; i++) ids.push(Math.floor(next() * VOCABULARY));
    ids.push(CLOSE);
  };
  return Array.from({ length: turns }, (_, index) => {
    push(perTurn - sampled);
    const text = textOf(next, perTurn - sampled);
    history.push(
      index === 0 ? { role: 'user', content: text } : { role: 'tool', tool_call_id: `c${index - 1}.0`, content: text },
    );
    const request = memory.request(
      'main',
      history.map((message) => ({ ...message })),
      [],
    );
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
      request: {
        ...request,
        images: NO_IMAGES,
        samplingAsked: {},
        toolChoice: null,
        parallelToolCalls: null,
        constraint: null,
        sampling: samplingSchema.parse({}),
        adjusted: [],
      },
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

function assistant(index: number, text: string): AssistantMessage {
  const call = { name: 'shell', arguments: JSON.stringify({ command: text.slice(0, text.length / 2) }) };
  return {
    role: 'assistant',
    content: text.slice(text.length / 2),
    tool_calls: [{ id: `c${index}.0`, type: 'function', function: call }],
  };
}

type Measured = { readonly ms: number; readonly mb: number; readonly completions: readonly Completion[] };

function measure(turns: number, tokens: number, sampledShare?: number): Measured {
  const completions = sessionOf(turns, tokens, sampledShare);
  const spec = { strategy: 'prefix_merging', config: {} };
  const request = { spec, completions, status: 'COMPLETED' as const, reward: 1, error: null, metadata: {} };
  const { json, audit } = buildTrajectory(request);
  if (audit.exact_context_share !== 1) throw new Error('the session is not exact');
  const ms = medianCpuMs(() => buildTrajectory(request), WARM_UP, RUNS);
  return { ms, mb: json.length / 1e6, completions };
}

const rows: ReportRow[] = [];
const keys: Record<string, number> = {};
const perToken: number[] = [];
for (const [turns, tokens] of SIZES) {
  const { ms, mb, completions } = measure(turns, tokens);
  perToken.push((ms * 1e6) / tokens);
  const label = `${turns} turns, ${tokens / 1000}k tokens`;
  rows.push([label, `${round(ms)} ms`, `${round((ms * 1e6) / tokens, 1)} ns per token, ${round(mb)} MB of JSON`]);
  if (tokens === 40_000) keys.cpu_ms_60x40k = round(ms);
  if (tokens === 200_000) {
    keys.cpu_ms_200x200k = round(ms);
    keys.records_cpu_ms_200x200k = round(medianCpuMs(() => encodeRecords(completions), WARM_UP, RUNS));
    rows.push([
      '  its records in addition',
      `${keys.records_cpu_ms_200x200k} ms`,
      'the completions as the API serves them',
    ]);
    const all = measure(turns, tokens, 0.95);
    keys.cpu_ms_200x200k_all_sampled = round(all.ms);
    rows.push(['  with 95 % of it sampled', `${keys.cpu_ms_200x200k_all_sampled} ms`, `${round(all.mb)} MB of JSON`]);
  }
}
// Compares the cost per token of the largest session with that of the second smallest. A run of the smallest session takes too little time
// to be measured exactly.
const growth = round((perToken.at(-1) ?? 0) / (perToken[1] ?? 1));
keys.ns_per_token_largest_over_60x40k = growth;
rows.push(['per token, largest to 60 x 40k', growth, '1 is linear']);
printReport('Building a trajectory: CPU of graph, builder, audit and JSON', rows, keys);
