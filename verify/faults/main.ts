// `npm run verify -- faults`: runs every fault suite with SQLite and with PostgreSQL and prints the results as a table. Options: --suite ID
// such as S3 (repeatable), --store sqlite|postgres, --quick, --seed N, --json.
import { seededRandom } from '@floe-rl/core';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import type { PostgresCluster } from '../services/postgres-cluster.ts';
import { concludeStores, withStores } from './stores.ts';
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

const SUITE_IDS = SUITES.map(({ id }) => id);

const { options, json } = readOptions({
  suite: { type: 'string', multiple: true, default: SUITE_IDS },
  store: { type: 'string', multiple: true, default: ['sqlite', 'postgres'] },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
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

/** Runs the selected fault suites with one store. */
async function runStore(store: string, postgres: PostgresCluster | null): Promise<Total> {
  const total: Total = { points: 0, lost: 0, duplicated: 0, leaked: 0, wrong: 0, slowest_recovery_s: 0 };
  for (const suite of SUITES) {
    if (!options.suite.includes(suite.id)) continue;
    // Skips a suite that is not meant for this store. A suite whose result is the same for every store has just one store in `stores`.
    if (suite.stores !== undefined && !suite.stores.includes(store)) continue;
    const missing = (await suite.whyNot?.()) ?? null;
    if (missing === null) add(total, suite, store, await runSuite(suite, store, postgres));
    else progress.print(`${suite.id.padEnd(4)} skipped: ${missing}`);
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

refuseUnknown('suite', options.suite, SUITE_IDS);
const stores = await withStores({ program: 'faults', stores: options.store, progress }, runStore);
concludeStores(stores, json);
