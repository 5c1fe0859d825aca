// `npm run fidelity`: holds every token that floe hands to a trainer against the ledger of the engine that sampled it.
//
//   node fidelity/run.mjs [--tokens N] [--seed N] [--harness NAME]… [--no-harnesses] [--jobs N] [--json FILE]
//
// First random harnesses in every engine mode, up to N sampled tokens in all; then the real programs, in token mode, in chat mode,
// and in chat mode with the merge rule of Polar. Ends with "fidelity: tokens T, mismatches M, trained twice D, unaccounted U".
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT, setUp, step } from '../../tools/setup.mjs';

const { values: options } = parseArgs({
  options: {
    tokens: { type: 'string', default: '1000000' },
    seed: { type: 'string', default: '1' },
    harness: { type: 'string', multiple: true, default: [] },
    'no-harnesses': { type: 'boolean', default: false },
    jobs: { type: 'string', default: '2' },
    json: { type: 'string' },
  },
});

/** The engine modes of the golden cases, which the random harnesses go through. */
const ENGINE_MODES = 5;

function randomHarnesses() {
  const dir = mkdtempSync(join(tmpdir(), 'floe-fidelity-'));
  const report = join(dir, 'report.json');
  const env = {
    ...process.env,
    FLOE_FIDELITY_TOKENS: String(Math.ceil(Number(options.tokens) / ENGINE_MODES)),
    FLOE_FIDELITY_SEED: options.seed,
    FLOE_FIDELITY_REPORT: report,
  };
  const args = ['run', '--reporter=./tools/summary-reporter.mjs', '--testTimeout=3600000', 'test/fidelity'];
  const vitest = join(ROOT, 'node_modules', 'vitest', 'vitest.mjs');
  const { status } = spawnSync(process.execPath, [vitest, ...args], { cwd: ROOT, env, stdio: 'inherit' });
  try {
    return { failed: status !== 0, figures: JSON.parse(readFileSync(report, 'utf8')) };
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/** Lines of the table: one harness, captured and built in one way. */
function randomLines(figures) {
  return Object.entries(figures).flatMap(([mode, { auto, polar }]) => {
    const line = (name, measure) => ({ harness: 'random', mode: name, counted: measure === auto, ...measure });
    return mode.endsWith('chat') ? [line(mode, auto), line(`${mode}, Polar's merge`, polar)] : [line(mode, auto)];
  });
}

const percent = (part, whole) => (whole === 0 ? '–' : `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %`);

function tableOf(lines) {
  const head = ['harness', 'captured and built', 'sessions', 'sampled', 'trained', 'exact context', 'traces a session'];
  const rows = lines.map((line) => [
    line.harness,
    line.mode,
    String(line.sessions),
    String(line.sampled),
    percent(line.trained, line.sampled),
    percent(line.exact, line.trained),
    (line.traces / Math.max(1, line.sessions)).toFixed(1),
  ]);
  const all = [head, head.map(() => '---'), ...rows];
  return all.map((row) => `| ${row.join(' | ')} |`).join('\n');
}

function exactShares(lines) {
  const shares = {};
  for (const { harness, mode, exact, trained } of lines) {
    shares[harness] ??= {};
    shares[harness][mode] = trained === 0 ? null : exact / trained;
  }
  return shares;
}

setUp();
step('random harnesses in every engine mode');
const random = randomHarnesses();
const lines = randomLines(random.figures);
const problems = random.failed ? ['the random harnesses found differences; see above'] : [];
if (!options['no-harnesses']) {
  step('real harnesses');
  const { realHarnesses } = await import('./harnesses.mjs');
  const real = await realHarnesses({ only: options.harness, jobs: Number(options.jobs) });
  lines.push(...real.lines);
  problems.push(...real.problems);
}
const counted = lines.filter((line) => line.counted);
const total = (key) => counted.reduce((sum, line) => sum + line[key], 0);
const figures = {
  tokens: total('sampled'),
  // A wrong token is wrong however it is built.
  mismatches: lines.reduce((sum, line) => sum + line.mismatches, 0),
  trained_twice: lines.reduce((sum, line) => sum + line.trained_twice, 0),
  unaccounted: total('unaccounted'),
  exact_share: exactShares(lines),
};
console.log(`\n${tableOf(lines)}\n`);
for (const text of problems) console.log(text);
if (options.json !== undefined) writeFileSync(options.json, `${JSON.stringify({ ...figures, lines }, null, 1)}\n`);
console.log(JSON.stringify(figures));
const { tokens, mismatches, trained_twice, unaccounted } = figures;
console.log(
  `fidelity: tokens ${tokens}, mismatches ${mismatches}, trained twice ${trained_twice}, unaccounted ${unaccounted}`,
);
if (problems.length > 0 || mismatches + trained_twice + unaccounted > 0) process.exitCode = 1;
