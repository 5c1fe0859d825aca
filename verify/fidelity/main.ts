// `npm run verify -- fidelity`: compares every token that floe returns to a trainer with the ledger of the engine that sampled the token.
//
//   npm run verify -- fidelity [--tokens N] [--seed N] [--harness NAME]… [--no-harnesses] [--jobs N] [--json [FILE]]
//
// First runs randomly generated agents in every engine mode while the weights are updated, until N tokens are sampled in total. Then runs
// the real harness programs in capture mode `tokens`, in mode `chat`, and in mode `chat` with Polar's merge rule. Ends with
// "fidelity: tokens T, mismatches M, trained twice D, unaccounted U, stale context S".
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { runVitest } from '../../tools/vitest.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { runHarnesses } from './harnesses.ts';
import { exactShares, type Line, measureSchema, tableOfLines } from './line.ts';

const { options, json } = readOptions({
  tokens: { type: 'string', default: '1000000' },
  seed: { type: 'string', default: '1' },
  harness: { type: 'string', multiple: true, default: [] },
  'no-harnesses': { type: 'boolean', default: false },
  jobs: { type: 'string', default: '2' },
});

/**
 * Number of engine modes (an engine's API with a capture mode) in which the randomly generated agents run. They are the modes of test/golden
 * and two modes of vLLM servers that cannot be paused and report no version.
 */
const ENGINE_MODES = 7;

/**
 * The counts of the randomly generated agents by engine mode. `auto` and `polar` count the same sessions: `auto` with floe's default
 * builder, `polar` with Polar's merge rule.
 */
const randomReportSchema = z.record(z.string(), z.object({ auto: measureSchema, polar: measureSchema }));
type RandomReport = z.infer<typeof randomReportSchema>;

function runRandomHarnesses(): { readonly isPassed: boolean; readonly report: RandomReport } {
  const dir = mkdtempSync(join(tmpdir(), 'floe-fidelity-'));
  const file = join(dir, 'report.json');
  process.env.FLOE_FIDELITY_TOKENS = String(Math.ceil(Number(options.tokens) / ENGINE_MODES));
  process.env.FLOE_FIDELITY_SEED = options.seed;
  process.env.FLOE_FIDELITY_REPORT = file;
  try {
    const status = runVitest(['--testTimeout=3600000', 'test/fidelity']);
    return { isPassed: status === 0, report: randomReportSchema.parse(JSON.parse(readFileSync(file, 'utf8'))) };
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function randomLines(report: RandomReport): Line[] {
  return Object.entries(report).flatMap(([mode, { auto, polar }]): Line[] => {
    const lines = [{ harness: 'random', mode, counted: true, ...auto }];
    if (mode.includes('chat')) {
      lines.push({ harness: 'random', mode: `${mode}, Polar's merge`, counted: false, ...polar });
    }
    return lines;
  });
}

console.error('▸ random harnesses in every engine mode');
const random = runRandomHarnesses();
const lines = randomLines(random.report);
const problems = random.isPassed ? [] : ['the random harnesses found differences; see above'];
if (!options['no-harnesses']) {
  console.error('▸ real harnesses');
  const real = await runHarnesses({ only: options.harness, jobs: Number(options.jobs) });
  lines.push(...real.lines);
  problems.push(...real.problems);
}
const counted = lines.filter((line) => line.counted);
const figures = {
  tokens: counted.reduce((sum, { sampled }) => sum + sampled, 0),
  // A wrong token is counted once for each row of the table whose traces contain it.
  mismatches: lines.reduce((sum, line) => sum + line.mismatches, 0),
  trained_twice: lines.reduce((sum, line) => sum + line.trained_twice, 0),
  unaccounted: counted.reduce((sum, line) => sum + line.unaccounted, 0),
  stale_context: counted.reduce((sum, line) => sum + line.stale_context, 0),
  exact_share: exactShares(lines),
};
console.log(`\n${tableOfLines(lines)}\n`);
for (const problem of problems) console.log(problem);
const { tokens, mismatches, trained_twice, unaccounted, stale_context } = figures;
conclude({
  line: `fidelity: tokens ${tokens}, mismatches ${mismatches}, trained twice ${trained_twice}, unaccounted ${unaccounted}, stale context ${stale_context}`,
  keys: figures,
  details: { ...figures, lines },
  isPassed: problems.length === 0 && mismatches + trained_twice + unaccounted + stale_context === 0,
  json,
});
