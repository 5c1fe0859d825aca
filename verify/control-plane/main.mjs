// `npm run simulate`: lives through clusters on a virtual clock, one for each seed, and checks every promise of floe in each.
//
//   node tools/simulate.mjs [--seeds N] [--from N] [--jobs N] [--planted] [--json]
//   node tools/simulate.mjs --seed N [--trace]     one world again; --trace prints all of it
//
// Needs dist/. Ends with "violations N"; with --planted, defects are planted as well and must be caught.
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT } from '../../tools/setup.mjs';
import { hunt } from './hunt.mjs';
import { simulateSeeds } from './seeds.mjs';

const { values: options } = parseArgs({
  options: {
    seeds: { type: 'string', default: '1000' },
    from: { type: 'string', default: '1' },
    seed: { type: 'string' },
    trace: { type: 'boolean', default: false },
    jobs: { type: 'string', default: String(availableParallelism()) },
    planted: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
const dist = join(ROOT, 'dist');
const jobs = Number(options.jobs);
/** More say no more. */
const MAX_FAILURES = 10;
/** Between two lines of progress. */
const PROGRESS_MS = 10_000;

const say = options.json ? (...words) => console.error(...words) : (...words) => console.log(...words);

function show({ seed, invariant, message, events }) {
  say(`\nseed ${seed}: ${invariant}: ${message}\n${events.join('\n')}`);
  say(`again: node tools/simulate.mjs --seed ${seed} --trace\n`);
}

async function one(seed) {
  const { simulate } = await import(new URL(`file://${dist}/simulation/index.js`));
  const { violation, events, virtualMs } = await simulate(seed);
  if (options.trace) say(events.join('\n'));
  else if (violation !== null) show({ seed, ...violation, events: events.slice(-40) });
  say(`seed ${seed}: ${(virtualMs / 1000).toFixed(1)} s of a cluster's life, ${events.length} events`);
  return violation === null ? 0 : 1;
}

async function many(from, count) {
  const startMs = performance.now();
  let toldMs = startMs;
  let told = 0;
  const { seeds, failures } = await simulateSeeds({
    dist,
    from,
    count,
    jobs,
    maxFailures: MAX_FAILURES,
    onDone: (done, failed) => {
      // At once: a long run need not end before somebody looks at it.
      for (; told < failed.length; told++)
        say(`seed ${failed[told].seed}: ${failed[told].invariant}: ${failed[told].message}`);
      if (performance.now() - toldMs < PROGRESS_MS) return;
      toldMs = performance.now();
      say(`${done} of ${count} seeds, ${failed.length} violations`);
    },
  });
  for (const failure of failures) show(failure);
  const { user, system } = process.cpuUsage();
  const ms = (user + system) / 1000 / seeds;
  say(`${seeds} seeds in ${((performance.now() - startMs) / 1000).toFixed(0)} s, ${ms.toFixed(1)} ms of CPU each`);
  return { seeds, violations: failures.length };
}

if (options.seed !== undefined) {
  const violations = await one(Number(options.seed));
  say(`violations ${violations}`);
  process.exit(violations === 0 ? 0 : 1);
}
const { seeds, violations } = await many(Number(options.from), Number(options.seeds));
const { planted, caught } = options.planted ? await hunt({ dist, jobs, say }) : { planted: 0, caught: 0 };
if (options.planted) say(`planted ${planted}, caught ${caught}`);
say(`violations ${violations}`);
if (options.json) console.log(JSON.stringify({ seeds, violations, planted, caught }));
process.exit(violations > 0 || caught < planted ? 1 : 0);
