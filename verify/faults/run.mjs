// `npm run faults`: every suite of harm over SQLite and PostgreSQL, as a table. Options: --suite S3 (repeatable), --store sqlite|postgres,
// --quick, --seed N, --json.
import { parseArgs } from 'node:util';
import { startPostgres, whyNoPostgres } from '../services/postgres-cluster.mjs';
import { killAll } from './child.mjs';
import { seeded } from './feeder.mjs';
import { Progress } from './progress.mjs';
import { SUITES } from './suites/index.mjs';

const { values: options } = parseArgs({
  options: {
    suite: { type: 'string', multiple: true },
    store: { type: 'string', multiple: true },
    seed: { type: 'string', default: '1' },
    quick: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
const progress = new Progress();

async function main() {
  const stores = {};
  for (const store of options.store ?? ['sqlite', 'postgres']) stores[store] = await runStore(store);
  const rows = Object.values(stores).filter((one) => one !== null);
  const bad = rows.some((one) => one.lost + one.duplicated + one.leaked + one.wrong > 0);
  if (options.json) console.log(JSON.stringify({ stores }));
  process.exitCode = bad ? 1 : 0;
}

async function runStore(store) {
  const why = store === 'postgres' ? whyNoPostgres() : null;
  if (why !== null) {
    progress.done(`faults ${store}: skipped: ${why}`);
    return null;
  }
  const postgres = store === 'postgres' ? await startPostgres() : null;
  const total = { points: 0, lost: 0, duplicated: 0, leaked: 0, wrong: 0, slowest_recovery_s: 0 };
  try {
    for (const suite of SUITES) {
      if (options.suite !== undefined && !options.suite.includes(suite.id)) continue;
      // What does not touch the store is run once.
      if (suite.stores !== undefined && !suite.stores.includes(store)) continue;
      const skip = (await suite.whyNot?.()) ?? null;
      if (skip !== null) {
        progress.done(`${suite.id.padEnd(4)} skipped: ${skip}`);
        continue;
      }
      add(total, suite, store, await runSuite(suite, store, postgres));
    }
  } finally {
    await postgres?.stop();
  }
  progress.done(
    `faults ${store}: points ${total.points}, lost ${total.lost}, duplicated ${total.duplicated}, leaked ${total.leaked}, wrong ${total.wrong}, slowest recovery ${total.slowest_recovery_s} s`,
  );
  return total;
}

async function runSuite(suite, store, postgres) {
  progress.show(`${store}: ${suite.id} ${suite.title}`);
  const runs = options.quick ? suite.runs.quick : suite.runs.full;
  return suite.run({ runs, random: seeded(Number(options.seed)), postgres, progress });
}

function add(total, suite, store, row) {
  const { lost, duplicated, leaked, wrong, runs, sessions, texts, slowestMs } = row;
  const bad = lost + duplicated + leaked + wrong;
  progress.done(
    `${suite.id.padEnd(4)} ${store.padEnd(8)} ${bad === 0 ? 'pass' : 'FAIL'}  ${suite.title}: ${runs} runs, ${sessions ?? 0} sessions${row.note === undefined ? '' : `, ${row.note}`}`,
  );
  for (const text of (texts ?? []).slice(0, 20)) progress.done(`       ${text}`);
  total.points += runs;
  for (const [name, count] of Object.entries({ lost, duplicated, leaked, wrong })) total[name] += count;
  total.slowest_recovery_s = Math.max(total.slowest_recovery_s, Number(((slowestMs ?? 0) / 1000).toFixed(2)));
}

try {
  await main();
} finally {
  await killAll();
}
