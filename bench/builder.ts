// Measures the CPU time of building a trajectory from a session's completions: token graph, traces, audit and JSON.
//
//   npm run bench -- builder [--quick] [--json]
//
// Each measured session has one agent, whose prompts each continue the previous turn. Half of the session's tokens are sampled. Token ids are
// drawn from a vocabulary of 151,643, and a token has about four characters of text. The prompts of a session are views of one buffer, as in
// the proxy. The results are medians over many runs after a warm-up. The CPU time covers the whole process, including the garbage collector's
// threads. The floor is `JSON.stringify` of the same trajectory, which every recorder of sessions has to do.
import { type Completion, encodeRecords } from '@floe-rl/capture';
import { buildTrajectory } from '#capture/tokens/trajectory';
import { medianCpuMs, mediansCpuMs } from './cpu-time.ts';
import { sessionOf } from './long-session.ts';
import { printReport, type ReportRow, round } from './report.ts';

const isQuick = process.argv.includes('--quick');
/** Number of runs before the measured runs, so that the JIT compiler has optimised the code. */
const WARM_UP = 60;
const RUNS = isQuick ? 15 : 101;

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

type Measured = {
  readonly ms: number;
  /** CPU time of `JSON.stringify` of the trajectory. */
  readonly floorMs: number;
  readonly mb: number;
  readonly completions: readonly Completion[];
};

function measure(turns: number, tokens: number, sampledShare?: number): Measured {
  const completions = sessionOf(turns, tokens, sampledShare);
  const spec = { strategy: 'prefix_merging', config: {} };
  const request = { spec, completions, status: 'COMPLETED' as const, reward: 1, error: null, metadata: {} };
  const { json, audit } = buildTrajectory(request);
  if (audit.exact_context_share !== 1) throw new Error('the session is not exact');
  const trajectory: unknown = JSON.parse(json.toString());
  const works = [() => buildTrajectory(request), () => JSON.stringify(trajectory)];
  const [ms = 0, floorMs = 0] = mediansCpuMs(works, WARM_UP, RUNS);
  return { ms, floorMs, mb: json.length / 1e6, completions };
}

const rows: ReportRow[] = [];
const keys: Record<string, number> = {};
const perToken: number[] = [];
for (const [turns, tokens] of SIZES) {
  const { ms, floorMs, mb, completions } = measure(turns, tokens);
  perToken.push((ms * 1e6) / tokens);
  const label = `${turns} turns, ${tokens / 1000}k tokens`;
  const overFloor = round(ms / floorMs);
  rows.push([
    `${label}, over the floor`,
    overFloor,
    `${round(ms)} ms, ${round((ms * 1e6) / tokens, 1)} ns per token; floor ${round(floorMs)} ms; ${round(mb)} MB of JSON`,
  ]);
  if (tokens === 40_000) keys.cpu_ms_60x40k = round(ms);
  if (tokens === 200_000) {
    keys.cpu_ms_200x200k = round(ms);
    keys.cpu_over_floor_200x200k = overFloor;
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
// Compares the cost per token of the largest session with the cost per token of the second smallest. A run of the smallest session takes too
// little time to be measured exactly.
const growth = round((perToken.at(-1) ?? 0) / (perToken[1] ?? 1));
keys.ns_per_token_largest_over_60x40k = growth;
rows.push(['per token, largest to 60 x 40k', growth, '1 is linear']);
printReport('Building a trajectory: CPU of graph, builder, audit and JSON', rows, keys);
