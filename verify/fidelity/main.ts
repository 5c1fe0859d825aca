// `npm run verify -- fidelity`: compares every token that floe returns to a trainer with the ledger of the engine that sampled the token.
//
//   npm run verify -- fidelity [--tokens N] [--seed N] [--harness NAME]… [--no-harnesses] [--jobs N] [--json [FILE]]
//
// First runs random harnesses in every engine mode, until N tokens are sampled in total. Then runs the real programs in token mode, in
// chat mode, and in chat mode with Polar's merge rule. Ends with "fidelity: tokens T, mismatches M, trained twice D, unaccounted U".
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { z } from 'zod';
import { takeJsonOption } from '../../tools/json-option.ts';
import { runVitest } from '../../tools/vitest.ts';
import { runHarnesses } from './harnesses.ts';
import { exactShares, type Line, measureSchema, tableOf } from './line.ts';

const { args, json } = takeJsonOption(process.argv.slice(2));
const { values: options } = parseArgs({
  args: [...args],
  options: {
    tokens: { type: 'string', default: '1000000' },
    seed: { type: 'string', default: '1' },
    harness: { type: 'string', multiple: true, default: [] },
    'no-harnesses': { type: 'boolean', default: false },
    jobs: { type: 'string', default: '2' },
  },
});

/** Number of engine modes in which the random harnesses run; they are the modes of the golden cases. */
const ENGINE_MODES = 5;

/**
 * The random harnesses' counts by engine mode: the same sessions built in floe's default way (`auto`) and with Polar's merge rule
 * (`polar`).
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
    if (mode.endsWith('chat')) {
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
  // A wrong token is counted once for each row whose samples contain it.
  mismatches: lines.reduce((sum, line) => sum + line.mismatches, 0),
  trained_twice: lines.reduce((sum, line) => sum + line.trained_twice, 0),
  unaccounted: counted.reduce((sum, line) => sum + line.unaccounted, 0),
  exact_share: exactShares(lines),
};
console.log(`\n${tableOf(lines)}\n`);
for (const problem of problems) console.log(problem);
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify({ ...figures, lines }, null, 1)}\n`);
const { tokens, mismatches, trained_twice, unaccounted } = figures;
console.log(
  `fidelity: tokens ${tokens}, mismatches ${mismatches}, trained twice ${trained_twice}, unaccounted ${unaccounted}`,
);
if (json.line) console.log(JSON.stringify(figures));
if (problems.length > 0 || mismatches + trained_twice + unaccounted > 0) process.exitCode = 1;
