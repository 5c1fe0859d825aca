// `npm run verify -- faults`: runs every fault suite with SQLite and with PostgreSQL and prints the results as a table. Options: --suite ID
// such as S3 (repeatable), --store sqlite|postgres, --quick, --seed N, --json.
import { parseArgs } from 'node:util';
import { seededRandom } from '@floe-rl/core';
import { type PostgresCluster, startPostgres, whyNoPostgres } from '../services/postgres-cluster.ts';
import { killAll } from './child.ts';
import { Progress } from './progress.ts';
import { cancel } from './suites/cancel.ts';
import { chaos } from './suites/chaos.ts';
import { clocks } from './suites/clocks.ts';
import { disk } from './suites/disk.ts';
import { lies } from './suites/lies.ts';
import { partition } from './suites/partition.ts';
import { pause } from './suites/pause.ts';
import { restart } from './suites/restart.ts';
import { slowClients } from './suites/slow-clients.ts';
import { ssrf } from './suites/ssrf.ts';
import type { Suite } from './suites/suite.ts';
import { weights } from './suites/weights.ts';
import { FINDING_KINDS, type SuiteRow } from './traffic.ts';

/** All fault suites, in the order in which they run. */
const SUITES: readonly Suite[] = [
  pause,
  partition,
  chaos,
  disk,
  clocks,
  lies,
  slowClients,
  cancel,
  restart,
  ssrf,
  weights,
];

const { values: options } = parseArgs({
  options: {
    suite: { type: 'string', multiple: true, default: SUITES.map(({ id }) => id) },
    store: { type: 'string', multiple: true, default: ['sqlite', 'postgres'] },
    seed: { type: 'string', default: '1' },
    quick: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
/** Maximum number of violations that are printed for a suite. The printed counts include all violations. */
const MAX_TEXTS = 20;

type Total = {
  points: number;
  lost: number;
  duplicated: number;
  leaked: number;
  wrong: number;
  slowest_recovery_s: number;
};

const progress = new Progress();

async function main(): Promise<void> {
  const unknown = options.suite.find((id) => !SUITES.some((suite) => suite.id === id));
  if (unknown !== undefined) {
    console.error(`--suite ${unknown}: there are ${SUITES.map(({ id }) => id).join(', ')}`);
    process.exitCode = 2;
    return;
  }
  const stores: Record<string, Total | null> = {};
  for (const store of options.store) stores[store] = await runStore(store);
  const totals = Object.values(stores).filter((total) => total !== null);
  if (options.json) console.log(JSON.stringify({ stores }));
  process.exitCode = totals.some((total) => FINDING_KINDS.some((kind) => total[kind] > 0)) ? 1 : 0;
}

/** Runs the selected fault suites with one store (`sqlite` or `postgres`). Returns `null` when PostgreSQL is not available. */
async function runStore(store: string): Promise<Total | null> {
  const why = store === 'postgres' ? whyNoPostgres() : null;
  if (why !== null) {
    progress.print(`faults ${store}: skipped: ${why}`);
    return null;
  }
  const postgres = store === 'postgres' ? await startPostgres() : null;
  const total: Total = { points: 0, lost: 0, duplicated: 0, leaked: 0, wrong: 0, slowest_recovery_s: 0 };
  try {
    for (const suite of SUITES) {
      if (!options.suite.includes(suite.id)) continue;
      // Skips a suite that is not meant for this store. A suite whose result is the same for every store has just one store in `stores`.
      if (suite.stores !== undefined && !suite.stores.includes(store)) continue;
      const missing = (await suite.whyNot?.()) ?? null;
      if (missing === null) add(total, suite, store, await runSuite(suite, store, postgres));
      else progress.print(`${suite.id.padEnd(4)} skipped: ${missing}`);
    }
  } finally {
    await postgres?.stop();
  }
  progress.print(
    `faults ${store}: points ${total.points}, lost ${total.lost}, duplicated ${total.duplicated}, leaked ${total.leaked}, wrong ${total.wrong}, slowest recovery ${total.slowest_recovery_s} s`,
  );
  return total;
}

function runSuite(suite: Suite, store: string, postgres: PostgresCluster | null): Promise<SuiteRow> {
  progress.show(`${store}: ${suite.id} ${suite.title}`);
  const runs = options.quick ? suite.runs.quick : suite.runs.full;
  return suite.run({ runs, random: seededRandom(Number(options.seed)), postgres, progress });
}

function add(total: Total, suite: Suite, store: string, row: SuiteRow): void {
  const hasFindings = FINDING_KINDS.some((kind) => row[kind] > 0);
  const note = row.note === undefined ? '' : `, ${row.note}`;
  progress.print(
    `${suite.id.padEnd(4)} ${store.padEnd(8)} ${hasFindings ? 'FAIL' : 'pass'}  ${suite.title}: ${row.runs} runs, ${row.sessions} sessions${note}`,
  );
  for (const text of row.texts.slice(0, MAX_TEXTS)) progress.print(`       ${text}`);
  total.points += row.runs;
  for (const kind of FINDING_KINDS) total[kind] += row[kind];
  total.slowest_recovery_s = Math.max(total.slowest_recovery_s, Number((row.slowestMs / 1000).toFixed(2)));
}

try {
  await main();
} finally {
  await killAll();
}
