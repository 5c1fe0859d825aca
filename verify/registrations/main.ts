// `npm run verify -- registrations`: starts a floe with a simulated engine, and runs rows through floe's adapters for other ecosystems. They
// are the agent server for NeMo Gym, the environment for verifiers and the environment for OpenEnv, each with the ecosystem's own package.
// Compares all tokens that a trainer gets from them with the engine's ledger, and checks that this comparison notices defects.
//
//   npm run verify -- registrations [--only NAME]… [--json [FILE]]
//   npm run verify -- registrations --install     (packages of PyPI, 1.6 GB, and the harness pi)
//
// Ends with "registrations: N ran, P passed, F failed, S skipped". The numbers count checks. An ecosystem whose packages are missing is
// skipped.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { loadScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { harnessDir } from '#floe/commands/home';
import { repositoryRoot } from '../../tools/repository.ts';
import { Checks } from '../runner/checks.ts';
import { Child } from '../runner/child.ts';
import { FLOE, PYTHON_PACKAGE, type RunningFloe, startFloe } from '../runner/floe.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { run } from '../services/venv.ts';
import { type Delivery, deliverySchema, differences, sabotaged } from './comparison.ts';
import { ECOSYSTEMS, type Ecosystem } from './ecosystems.ts';
import { INSTALL_COMMAND, installEnvironment, installedPython } from './environments.ts';
import { ROWS, TASK } from './rows.ts';

const { options, json } = readOptions({
  only: { type: 'string', multiple: true, default: [] },
  install: { type: 'boolean', default: false },
});

const PROGRAMS = join(repositoryRoot(), 'verify', 'registrations', 'programs');

const checks = new Checks();

type Floe = RunningFloe & { readonly sim: SimServer };

/** Starts floe as a user does, with a simulated engine in this process, whose ledger can be read. */
async function withFloe(dir: string, use: (floe: Floe) => Promise<void>): Promise<void> {
  const scenarios = await loadScenarios([join(repositoryRoot(), 'examples', 'scenarios', 'failing-test.yaml')]);
  const sim = await startSim({ scenarios, scaleOut: true });
  try {
    const floe = await startFloe(dir, ['--engine', sim.url, '--backend', 'local']);
    try {
      await use({ ...floe, sim });
    } finally {
      await floe.stop();
    }
  } finally {
    await sim.close();
  }
}

/** Runs the program of an ecosystem and returns what its trainers get. When the program fails, returns what they got before the failure. */
async function deliveries(
  { name, program }: Ecosystem,
  python: string,
  dir: string,
  env: Floe['env'],
): Promise<Delivery[]> {
  const folder = join(dir, name);
  const received = join(folder, 'received.jsonl');
  mkdirSync(folder);
  writeFileSync(received, '');
  writeFileSync(join(folder, 'task.json'), JSON.stringify(TASK));
  writeFileSync(join(folder, 'rows.jsonl'), ROWS.map((row) => `${JSON.stringify(row)}\n`).join(''));
  const child = new Child([python, join(PROGRAMS, program), folder], { env: { ...env, PYTHONPATH: PYTHON_PACKAGE } });
  const { code, signal } = await child.exited;
  checks.report(`${name}: its program runs`, code === 0 ? [] : [`it ended with ${code ?? signal}: ${child.errors}`]);
  const lines = readFileSync(received, 'utf8').split('\n').slice(0, -1);
  return lines.map((line) => parseAs(deliverySchema, JSON.parse(line), `${program}: a line`));
}

async function checkEcosystem(ecosystem: Ecosystem, python: string, dir: string, floe: Floe): Promise<void> {
  const { name, expected } = ecosystem;
  const received = await deliveries(ecosystem, python, dir, floe.env);
  const results = new Map<string, SessionResult>();
  for await (const result of floe.client.results({ after: 0, peek: true, follow: false })) {
    results.set(result.session_id, result);
  }
  const ledger = floe.sim.ledger.entries();
  for (const { face, row, problem } of expected) {
    const found = received.filter((one) => one.face === face && one.row === row);
    const [reason] = found.flatMap(({ skipped }) => skipped ?? []);
    if (reason !== undefined) {
      checks.skip(`${name}: ${face}, row ${row}`, reason);
      continue;
    }
    const problems = found.flatMap((one) => problem(one, results.get(one.session_id ?? '')) ?? []);
    checks.report(`${name}: ${face}, row ${row}`, found.length === 0 ? ['nothing was returned'] : problems);
  }
  const caught = new Map<string, string[]>();
  for (const delivery of received) {
    const result = results.get(delivery.session_id ?? '');
    if (delivery.sequences === undefined) continue;
    const what = `${name}: the tokens of ${delivery.face}, row ${delivery.row}`;
    if (result === undefined) checks.report(what, [`session ${delivery.session_id} is not known`]);
    else {
      checks.report(what, differences(delivery, result, ledger));
      if (result.policy.use !== 'train') continue;
      for (const [defect, broken] of Object.entries(sabotaged(delivery))) {
        const missed = caught.get(defect) ?? [];
        if (differences(broken, result, ledger).length === 0) missed.push(`${delivery.face}, row ${delivery.row}`);
        caught.set(defect, missed);
      }
    }
  }
  for (const [defect, missed] of caught) checks.report(`${name}: the comparison notices ${defect}`, missed);
}

refuseUnknown(
  'ecosystem',
  options.only,
  ECOSYSTEMS.map(({ name }) => name),
);
const selected = ECOSYSTEMS.filter(({ name }) => options.only.length === 0 || options.only.includes(name));

if (options.install) {
  for (const { name, packages } of selected) {
    console.error(`▸ installing the packages of ${name}`);
    installEnvironment(name, packages);
  }
  run(process.execPath, [FLOE, 'harness', 'install', 'pi']);
  process.exit(0);
}

const dir = mkdtempSync(join(tmpdir(), 'floe-registrations-'));
const { installed: hasPi } = await harnessStatus('pi', harnessDir());
const runnable = new Map<Ecosystem, string>();
for (const ecosystem of selected) {
  const python = installedPython(ecosystem.name, ecosystem.packages);
  if (python !== null && hasPi) runnable.set(ecosystem, python);
  else {
    const missing = python === null ? 'its packages are' : 'the harness pi is';
    checks.skip(ecosystem.name, `${missing} not installed; run ${INSTALL_COMMAND}`);
  }
}
try {
  if (runnable.size > 0) {
    await withFloe(dir, async (floe) => {
      for (const [ecosystem, python] of runnable) {
        console.error(`▸ ${ecosystem.name}`);
        await checkEcosystem(ecosystem, python, dir, floe);
      }
    });
  }
} finally {
  rmSync(dir, { recursive: true, force: true });
}
const { passed, failed, skipped } = checks;
const counts = { ran: passed + failed, passed, failed, skipped };
conclude({
  line: `registrations: ${counts.ran} ran, ${passed} passed, ${failed} failed, ${skipped} skipped`,
  keys: counts,
  isPassed: failed === 0,
  json,
});
