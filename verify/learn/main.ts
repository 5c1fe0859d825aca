// `npm run verify -- learn`: trains the simulated policy with examples/learn-sim, which reads sessions from floe and updates weights while
// sessions run. Then sabotages the data between floe's API and the trainer in three ways. With sabotaged data the same trainer must not learn.
//
//   npm run verify -- learn [--seeds N] [--harness NAME]… [--quick] [--json [FILE]] [--svg FILE]
//
// Ends with "learn: R runs, L learned, S sabotaged, F failed as they should". R counts the honest runs: one for each harness and seed, and one
// of the trainer in Python. S counts one for each harness and kind of sabotage. `--quick` runs one seed with the harness shell.
import { writeFileSync } from 'node:fs';
import { messageOf } from '@floe-rl/core';
import { harnessStatus } from '@floe-rl/node';
import { harnessDir } from '#floe/commands/home';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { countsOf, problemsOf } from './judge.ts';
import { pythonWithNumpy } from './python.ts';
import { curvesSvg, nameOf, rowOf, tableOfRuns } from './report.ts';
import { type Plan, type Run, runPlan, STEPS } from './run.ts';
import { SABOTAGES } from './sabotage.ts';

const { options, json } = readOptions({
  seeds: { type: 'string', default: '3' },
  harness: { type: 'string', multiple: true, default: ['shell', 'pi'] },
  quick: { type: 'boolean', default: false },
  svg: { type: 'string' },
});
const seeds = options.quick ? 1 : Number(options.seeds);

/** Returns the harnesses that can run here, and prints why others cannot. */
async function usableHarnesses(): Promise<string[]> {
  const usable: string[] = [];
  for (const harness of options.quick ? ['shell'] : options.harness) {
    const isInstalled = harness === 'shell' || (await harnessStatus(harness, harnessDir())).installed;
    if (isInstalled) usable.push(harness);
    else console.log(`skipped ${harness}: it is not installed: floe harness install ${harness}`);
  }
  return usable;
}

const harnesses = await usableHarnesses();
const python = options.quick ? null : pythonWithNumpy();
if (python === null)
  console.log(`skipped the trainer in Python: ${options.quick ? '--quick' : 'NumPy cannot be installed'}`);
const plans = [
  ...harnesses.flatMap((harness): Plan[] => [
    ...Array.from({ length: seeds }, (_, index): Plan => ({ harness, seed: index + 1, sabotage: null, python: null })),
    ...SABOTAGES.map((sabotage, index): Plan => ({ harness, seed: 1 + (index % seeds), sabotage, python: null })),
  ]),
  ...harnesses
    .slice(0, 1)
    .flatMap((harness): Plan[] => (python === null ? [] : [{ harness, seed: 1, sabotage: null, python }])),
];
const done: { readonly run: Run; readonly problems: readonly string[] }[] = [];
let broken = 0;
for (const plan of plans) {
  const name = nameOf(plan);
  try {
    const run = await runPlan(plan, ({ version, meanReward }) => {
      console.error(`  ${name}: ${version} of ${STEPS}, mean reward ${meanReward.toFixed(2)}`);
    });
    const problems = problemsOf(run);
    done.push({ run, problems });
    console.log(rowOf(run, problems));
    for (const problem of problems) console.log(`  ${problem}`);
  } catch (thrown) {
    broken++;
    console.log(`FAILED  ${name}: ${messageOf(thrown)}`);
  }
}
const honest = done.filter(({ run }) => run.sabotage === null);
const sabotaged = done.filter(({ run }) => run.sabotage !== null);
const figures = {
  runs: plans.filter(({ sabotage }) => sabotage === null).length,
  learned: honest.filter(({ problems }) => problems.length === 0).length,
  sabotaged: plans.filter(({ sabotage }) => sabotage !== null).length,
  failed_as_it_should: sabotaged.filter(({ problems }) => problems.length === 0).length,
};
console.log(`\n${tableOfRuns(done.map(({ run }) => run))}\n`);
if (options.svg !== undefined) writeFileSync(options.svg, curvesSvg(done.map(({ run }) => run)));
const lines = done.map(({ run: { sabotage, python, ...run }, problems }) => ({
  ...run,
  trainer: python === null ? 'typescript' : 'python',
  sabotage: sabotage?.name ?? null,
  ...countsOf(run.steps),
  problems,
}));
const { runs, learned, sabotaged: planned, failed_as_it_should: failed } = figures;
conclude({
  line: `learn: ${runs} runs, ${learned} learned, ${planned} sabotaged, ${failed} failed as they should`,
  keys: figures,
  details: { ...figures, lines },
  isPassed: broken === 0 && runs > 0 && learned === runs && failed === planned,
  json,
});
