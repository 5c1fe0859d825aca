// Measures the CPU time of exports: groups of finished sessions encoded in each trainer's format, as JSON lines and as Arrow.
//
//   npm run bench -- export [--quick] [--json]
//
// Each sample has one trace of 20,000 tokens in 40 turns; a third of the tokens are sampled. Messages are short, because their text is copied
// and does not differ between formats. Reading the stored trajectory is measured as a row of its own. The results are medians over many runs
// after a warm-up. The CPU time covers the whole process, including the garbage collector's threads. The floor of JSON lines is
// `JSON.stringify` of the ids, masks and log-probabilities alone. The floor of Arrow is one copy of their typed arrays.

import { seededRandom } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import type { SessionResult, Trace, Trajectory } from '@floe-rl/core/schema';
import {
  describeFormats,
  ENCODINGS,
  type Encoding,
  encodeExport,
  type FormatName,
  trainingGroups,
} from '@floe-rl/data/trainers';
import { medianCpuMs } from './cpu-time.ts';
import { printReport, type ReportRow, round } from './report.ts';

const isQuick = process.argv.includes('--quick');
const RUNS = isQuick ? 5 : 21;
const WARM_UP = isQuick ? 3 : 10;
const GROUPS = 4;
const SAMPLES = 8;
const TURNS = 40;
const TOKENS_PER_TURN = 500;
const SAMPLED_PER_TURN = 167;
const TOKENS = TURNS * TOKENS_PER_TURN;
const TOTAL_TOKENS = GROUPS * SAMPLES * TOKENS;
const VOCABULARY = 151_643;

/** This format repeats the prompt in every step, so it writes many times the tokens of a trace. It is left out of the keys. */
const REPEATING: FormatName = 'rllm';

const OPTIONS: Partial<Record<FormatName, Readonly<Record<string, unknown>>>> = {
  verl_batch: { prompt_length: TOKENS_PER_TURN, response_length: TOKENS, pad_token_id: 0 },
  roll: { sequence_length: TOKENS, pad_token_id: 0 },
};

function resultOf(group: number, sample: number): SessionResult {
  const next = seededRandom(group * SAMPLES + sample);
  const ids = Array.from({ length: TOKENS }, () => Math.floor(next() * VOCABULARY));
  const prompt = TOKENS_PER_TURN - SAMPLED_PER_TURN;
  const mask = Array.from({ length: TOKENS - prompt }, (_, i) => (i % TOKENS_PER_TURN < SAMPLED_PER_TURN ? 1 : 0));
  const sessionId = `ses_${group}_${sample}`;
  const trace: Trace = {
    trace_id: `${sessionId}.1.0`,
    prompt_ids: ids.slice(0, prompt),
    response_ids: ids.slice(prompt),
    loss_mask: mask,
    response_logprobs: mask.map((trained) => (trained === 1 ? Math.fround(Math.log(1 - next() ** 3)) : 0)),
    version_spans: [{ version: 'v1', start: 0, end: mask.length }],
    constrained_spans: [],
    prompt_messages: [{ role: 'user', content: 'go' }],
    response_messages: [{ role: 'assistant', content: 'done' }],
    tools: [],
    routed_experts: null,
    finish_reason: 'stop',
    reward: sample % 2,
    completion_ids: [],
    metadata: {},
  };
  const attempt = { session_id: sessionId, task_id: `tsk_${group}`, sample_index: sample, attempt: 1, epoch: 1 };
  const summary = sessionSummary(attempt, 'completed', { reward: sample % 2, trainable_tokens: 1, trace_count: 1 });
  return { ...summary, trajectory: { traces: [trace], images: {} } as unknown as Trajectory };
}

/** Returns the millions of tokens that `work` handles per CPU second. `work` handles all tokens in one call. */
function rate(work: () => unknown): number {
  return TOTAL_TOKENS / 1_000 / medianCpuMs(work, WARM_UP, RUNS);
}

const results = Array.from({ length: GROUPS }, (_, group) =>
  Array.from({ length: SAMPLES }, (_, sample) => resultOf(group, sample)),
).flat();
const texts = results.map((result) => JSON.stringify(result));
const groups = trainingGroups(results);
const reading = rate(() => trainingGroups(texts.map((text) => JSON.parse(text) as SessionResult)));
const rows: ReportRow[] = [['read stored results', `${round(reading)} M tokens/s`, 'JSON.parse and typed arrays']];
const slowest: Record<Encoding, number> = { jsonl: Number.POSITIVE_INFINITY, arrow: Number.POSITIVE_INFINITY };
const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
const numbers = traces.map((trace) => [
  [...trace.prompt_ids, ...trace.response_ids],
  trace.loss_mask,
  trace.response_logprobs,
]);
const arrays = numbers.map(([ids = [], mask = [], logprobs = []]) => [
  Int32Array.from(ids),
  Int8Array.from(mask),
  Float32Array.from(logprobs),
]);
const floors: Record<Encoding, number> = {
  jsonl: rate(() => numbers.map((lists) => JSON.stringify(lists))),
  arrow: rate(() => arrays.map((lists) => lists.map((list) => list.slice()))),
};
for (const { name } of describeFormats()) {
  const [lines, arrow] = ENCODINGS.map((encoding) => {
    const options = OPTIONS[name] ?? {};
    const value = rate(() => encodeExport(groups, { format: name, options }, encoding));
    if (name !== REPEATING) slowest[encoding] = Math.min(slowest[encoding], value);
    return { over: round(floors[encoding] / value), rate: `${round(value)} M tokens/s` };
  });
  rows.push([
    `${name}, over the floor`,
    lines?.over ?? '-',
    `JSON lines ${lines?.rate}; Arrow ${arrow?.over} times its floor, ${arrow?.rate}`,
  ]);
}
printReport(`export of ${TOTAL_TOKENS} tokens, per CPU second`, rows, {
  read_tokens_per_s: round(reading * 1e6, 0),
  jsonl_tokens_per_s: round(slowest.jsonl * 1e6, 0),
  arrow_tokens_per_s: round(slowest.arrow * 1e6, 0),
  jsonl_over_floor: round(floors.jsonl / slowest.jsonl),
  arrow_over_floor: round(floors.arrow / slowest.arrow),
});
