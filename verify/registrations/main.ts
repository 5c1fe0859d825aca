// `npm run verify -- registrations`: starts a floe with a simulated engine, and runs rows through its agent server for NeMo Gym, its
// environment for verifiers and its environment for OpenEnv, each with the ecosystem's own package. Compares all tokens that a trainer gets
// from them with the engine's ledger, and checks that this comparison notices defects.
//
//   npm run verify -- registrations [--only NAME]… [--json [FILE]]
//   npm run verify -- registrations --install     (packages of PyPI, 1.6 GB, and the harness pi)
//
// Ends with "registrations: N ran, P passed, F failed, S skipped"; the counts are of checks; an ecosystem whose packages are missing is skipped.

import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { FloeClient } from '@floe-rl/client';
import { parseAs } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { loadScenarios, type SimServer, startSim } from '@floe-rl/sim';
import { harnessDir } from '#floe/commands/home';
import { takeJsonOption } from '../../tools/json-option.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { Child } from '../faults/child.ts';
import { run } from '../services/venv.ts';
import { type Delivery, deliverySchema, differences, sabotaged } from './comparison.ts';
import { ECOSYSTEMS, type Ecosystem } from './ecosystems.ts';
import { INSTALL_COMMAND, installEnvironment, installedPython } from './environments.ts';
import { ROWS, TASK } from './rows.ts';

const { args, json } = takeJsonOption(process.argv.slice(2));
const { values: options } = parseArgs({
  args: [...args],
  options: {
    only: { type: 'string', multiple: true, default: [] },
    install: { type: 'boolean', default: false },
  },
});

const PROGRAMS = join(repositoryRoot(), 'verify', 'registrations', 'programs');
const CLI = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
const PYTHON_SOURCES = join(repositoryRoot(), 'python', 'src');

const counts = { ran: 0, passed: 0, failed: 0, skipped: 0 };

function check(name: string, problems: readonly string[]): void {
  counts.ran++;
  if (problems.length === 0) {
    counts.passed++;
    console.log(`ok    ${name}`);
  } else {
    counts.failed++;
    console.log(`FAIL  ${name}\n      ${problems.slice(0, 3).join('\n      ')}`);
  }
}

type Floe = { readonly sim: SimServer; readonly client: FloeClient; readonly env: Readonly<Record<string, string>> };

/** Starts floe as a user does, with a simulated engine in this process, whose ledger can be read. */
async function withFloe(dir: string, use: (floe: Floe) => Promise<void>): Promise<void> {
  const scenarios = await loadScenarios([join(repositoryRoot(), 'examples', 'scenarios', 'failing-test.yaml')]);
  const sim = await startSim({ scenarios, scaleOut: true });
  const token = randomBytes(16).toString('hex');
  const flags = ['--engine', sim.url, '--json', '--port', '0', '--backend', 'local', '--log-level', 'silent'];
  const child = new Child([process.execPath, CLI, 'up', ...flags], { env: { FLOE_HOME: dir, FLOE_TOKEN: token } });
  try {
    if (!(await child.becameReady())) throw new Error(`floe up ended: ${child.errors}`);
    const { server } = JSON.parse(child.readyLine) as { server: string };
    const client = new FloeClient({ url: server, token });
    await use({ sim, client, env: { FLOE_URL: server, FLOE_TOKEN: token, PYTHONPATH: PYTHON_SOURCES } });
    await client.close();
  } finally {
    await child.stop();
    await sim.close();
  }
}

/** Runs the program of an ecosystem and returns what its trainers get. When the program fails, that is what they got until then. */
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
  const child = new Child([python, join(PROGRAMS, program), folder], { env });
  child.lines.on('line', () => {});
  const { code, signal } = await child.exited;
  check(`${name}: its program runs`, code === 0 ? [] : [`it ended with ${code ?? signal}: ${child.errors}`]);
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
      counts.skipped++;
      console.log(`skip  ${name}: ${face}, row ${row}: ${reason}`);
      continue;
    }
    const problems = found.flatMap((one) => problem(one, results.get(one.session_id ?? '')) ?? []);
    check(`${name}: ${face}, row ${row}`, found.length === 0 ? ['nothing was returned'] : problems);
  }
  const caught = new Map<string, string[]>();
  for (const delivery of received) {
    const result = results.get(delivery.session_id ?? '');
    if (delivery.sequences === undefined) continue;
    const what = `${name}: the tokens of ${delivery.face}, row ${delivery.row}`;
    if (result === undefined) check(what, [`session ${delivery.session_id} is not known`]);
    else {
      check(what, differences(delivery, result, ledger));
      if (result.policy.use !== 'train') continue;
      for (const [defect, broken] of Object.entries(sabotaged(delivery))) {
        const missed = caught.get(defect) ?? [];
        if (differences(broken, result, ledger).length === 0) missed.push(`${delivery.face}, row ${delivery.row}`);
        caught.set(defect, missed);
      }
    }
  }
  for (const [defect, missed] of caught) check(`${name}: the comparison notices ${defect}`, missed);
}

function selected(): readonly Ecosystem[] {
  const unknown = options.only.find((name) => !ECOSYSTEMS.some((one) => one.name === name));
  if (unknown !== undefined) {
    console.error(`there is no ecosystem "${unknown}"; there are ${ECOSYSTEMS.map(({ name }) => name).join(', ')}`);
    process.exit(2);
  }
  return ECOSYSTEMS.filter(({ name }) => options.only.length === 0 || options.only.includes(name));
}

if (options.install) {
  for (const { name, packages } of selected()) {
    console.error(`▸ installing the packages of ${name}`);
    installEnvironment(name, packages);
  }
  run(process.execPath, [CLI, 'harness', 'install', 'pi']);
  process.exit(0);
}

const dir = mkdtempSync(join(tmpdir(), 'floe-registrations-'));
const { installed: hasPi } = await harnessStatus('pi', harnessDir());
const runnable = new Map<Ecosystem, string>();
for (const ecosystem of selected()) {
  const python = installedPython(ecosystem.name, ecosystem.packages);
  if (python !== null && hasPi) runnable.set(ecosystem, python);
  else {
    counts.skipped++;
    const missing = python === null ? 'its packages are' : 'the harness pi is';
    console.log(`skip  ${ecosystem.name}: ${missing} not installed; run ${INSTALL_COMMAND}`);
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
const { ran, passed, failed, skipped } = counts;
console.log(`registrations: ${ran} ran, ${passed} passed, ${failed} failed, ${skipped} skipped`);
if (json.line) console.log(JSON.stringify(counts));
if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(counts, null, 2)}\n`);
process.exit(failed === 0 ? 0 : 1);
