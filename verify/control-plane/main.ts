// `npm run verify -- simulate`: simulates a cluster on a virtual clock for each seed, injects faults, and checks that floe keeps its
// guarantees, for example that no acknowledged session is lost.
//
//   - npm run verify -- simulate [--seeds N] [--from N] [--jobs N] [--planted [--only TEXT]] [--json]
//   - npm run verify -- simulate --seed N [--trace]     one simulation; --trace prints all its events
//   - npm run verify -- simulate --nodes N --sessions N [--replicas N] [--engines N] [--seed N] [--json]     one large cluster
//
// Prints "violations N" at the end. With --planted, it also simulates copies of floe with known defects, and the checks must catch each
// defect; --only selects the defects whose name contains TEXT.
import { availableParallelism } from 'node:os';
import { systemClock } from '@floe-rl/core';
import { wholeNumber } from '../../tools/whole-number.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { hunt } from './hunt.ts';
import { simulateLarge } from './large-cluster.ts';
import type { ClusterSize } from './large-plan.ts';
import { type Failure, OWN_MODULE, simulateSeeds } from './seeds.ts';
import { simulate } from './simulation.ts';

const { options, json } = readOptions({
  seeds: { type: 'string', default: '1000' },
  from: { type: 'string', default: '1' },
  seed: { type: 'string' },
  trace: { type: 'boolean', default: false },
  jobs: { type: 'string', default: String(availableParallelism()) },
  planted: { type: 'boolean', default: false },
  only: { type: 'string', default: '' },
  nodes: { type: 'string' },
  sessions: { type: 'string' },
  replicas: { type: 'string', default: '3' },
  engines: { type: 'string', default: '200' },
});

/** Returns an option as a number. Throws `bad_request`, which names the option, when it is not a whole number of at least `least`. */
function numberOf(
  option: 'seeds' | 'from' | 'seed' | 'jobs' | 'nodes' | 'sessions' | 'replicas' | 'engines',
  least = 1,
): number {
  return wholeNumber(option, options[option] ?? '', least);
}

/** Number of failing seeds after which a run ends early, because further failing seeds rarely show another defect. */
const MAX_FAILURES = 10;
/** Minimum time between two printed lines of progress, ms. */
const PROGRESS_INTERVAL_MS = 10_000;
/** Number of log events that are printed for a failing seed. These are the last events before its violation. */
const SHOWN_EVENTS = 40;

/** Prints a line to stdout. With --json it prints to stderr instead, because stdout must then contain only the JSON object. */
const print = (line: string): void => (json.line ? console.error(line) : console.log(line));

function printFailure({ seed, invariant, message, events }: Failure): void {
  print(`\nseed ${seed}: ${invariant}: ${message}\n${events.join('\n')}`);
  print(`To repeat it: npm run verify -- simulate --seed ${seed} --trace\n`);
}

/** Simulates one seed and prints its events and its violation. Resolves to the number of violations: 0 or 1. */
async function simulateOne(seed: number): Promise<number> {
  const { violation, events, virtualMs } = await simulate(seed);
  if (options.trace) print(events.join('\n'));
  else if (violation !== null) printFailure({ seed, ...violation, events: events.slice(-SHOWN_EVENTS) });
  print(`seed ${seed}: ${(virtualMs / 1000).toFixed(1)} s of virtual time, ${events.length} events`);
  return violation === null ? 0 : 1;
}

/** Simulates the `count` seeds that start at `from`, and prints the failures. */
async function simulateMany(from: number, count: number, jobs: number): Promise<{ seeds: number; violations: number }> {
  const startMs = systemClock.monotonicMs();
  let printedMs = startMs;
  let printedFailures = 0;
  const { seeds, failures } = await simulateSeeds({
    module: OWN_MODULE,
    from,
    count,
    jobs,
    maxFailures: MAX_FAILURES,
    onProgress: (done, failed) => {
      // Prints each new failure as soon as it is known, so that it can be read before a long run ends.
      for (const { seed, invariant, message } of failed.slice(printedFailures))
        print(`seed ${seed}: ${invariant}: ${message}`);
      printedFailures = failed.length;
      if (systemClock.monotonicMs() - printedMs < PROGRESS_INTERVAL_MS) return;
      printedMs = systemClock.monotonicMs();
      print(`${done} of ${count} seeds, ${failed.length} violations`);
    },
  });
  for (const failure of failures) printFailure(failure);
  const { user, system } = process.cpuUsage();
  const cpuMs = (user + system) / 1000 / seeds;
  const wallS = (systemClock.monotonicMs() - startMs) / 1000;
  print(`${seeds} seeds in ${wallS.toFixed(0)} s, ${cpuMs.toFixed(1)} ms of CPU each`);
  return { seeds, violations: failures.length };
}

/** Simulates one large cluster, prints its figures, and ends the program. */
async function simulateCluster(size: ClusterSize): Promise<never> {
  const { violation, events, virtualMs, figures } = await simulateLarge(size, print);
  const { user, system } = process.cpuUsage();
  if (violation !== null)
    print(`\n${violation.invariant}: ${violation.message}\n${events.slice(-SHOWN_EVENTS).join('\n')}\n`);
  print(`${(virtualMs / 1000).toFixed(0)} s of virtual time in ${((user + system) / 1e6).toFixed(0)} s of CPU time`);
  const { nodes, sessions, replicas, engines } = size;
  const violations = violation === null ? 0 : 1;
  const keys = { nodes, sessions, replicas, engines, violations, ...figures };
  for (const [name, value] of Object.entries(keys)) print(`${name.padEnd(24)} ${value}`);
  print(`violations ${violations}`);
  conclude({ line: null, keys, isPassed: violations === 0, json });
  process.exit();
}

if (options.nodes !== undefined || options.sessions !== undefined) {
  await simulateCluster({
    nodes: numberOf('nodes', 2),
    sessions: numberOf('sessions', 2),
    replicas: numberOf('replicas'),
    engines: numberOf('engines'),
    seed: options.seed === undefined ? 1 : numberOf('seed'),
  });
}
if (options.seed !== undefined) {
  const violations = await simulateOne(numberOf('seed'));
  print(`violations ${violations}`);
  process.exit(violations === 0 ? 0 : 1);
}
const jobs = numberOf('jobs');
const { seeds, violations } = await simulateMany(numberOf('from'), numberOf('seeds'), jobs);
const { planted, caught } = options.planted
  ? await hunt({ jobs, only: options.only, print })
  : { planted: 0, caught: 0 };
if (options.planted) print(`planted ${planted}, caught ${caught}`);
print(`violations ${violations}`);
const isPassed = violations === 0 && caught === planted;
conclude({ line: null, keys: { seeds, violations, planted, caught }, isPassed, json });
process.exit();
