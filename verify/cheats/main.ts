// `npm run verify -- cheats`: runs agents that try to get a reward without doing their work, and an honest agent for each of them, in
// bubblewrap, Docker and Apptainer. Every cheat must get the reward 0, and every honest agent 1. A back end that does not work on this
// machine is skipped with its reason.
//
//   npm run verify -- cheats [--runtime NAME] [--only TEXT] [--quick] [--unprotected] [--json]
//
// `--quick` runs a third of the cheats in bubblewrap only. `--unprotected` runs the cheats without the protections that stop them, and then
// every cheat must get the reward 1: this shows that the cheats work. The last line of output is "cheats: C cheats, K caught, H honest, P
// passed"; with --json, a JSON object follows.
import { chmodSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { BACKENDS } from './backends.ts';
import { CHEAT_CLASSES } from './cheat.ts';
import { imageMissing, makeImage, makeSurroundings } from './image.ts';
import type { Row } from './round.ts';

const { options, json } = readOptions({
  runtime: { type: 'string' },
  only: { type: 'string', default: '' },
  quick: { type: 'boolean', default: false },
  unprotected: { type: 'boolean', default: false },
});

/** A quick run runs one of every this many cheats. */
const QUICK_SHARE = 3;

const progress = new Progress();

async function runAll(dir: string): Promise<Row[]> {
  const { runtime, only, quick, unprotected } = options;
  const names = runtime ?? (quick || unprotected ? 'bubblewrap' : null);
  const backends = BACKENDS.filter(({ name }) => names === null || name === names);
  if (backends.length === 0) throw new Error(`--runtime must be one of ${BACKENDS.map(({ name }) => name).join(', ')}`);
  const uploadRoot = await mkdtemp(join(dir, 'files-'));
  const surroundings = makeSurroundings(uploadRoot);
  const image = makeImage(dir);
  const setup = { image, surroundings, uploadRoot, stateDir: dir, only, every: quick ? QUICK_SHARE : 1, unprotected };
  const rows: Row[] = [];
  for (const { name, run } of backends) {
    const result = await run(setup, (left) => progress.show(`${name}: ${left} sessions left`));
    if (typeof result === 'string') progress.print(`${name} is skipped, because ${result}`);
    else rows.push(...result);
  }
  return rows;
}

/** Returns how a session ended, in a few words. */
function cellOf({ isRight, isFlagged, outcome, reward, failure }: Row): string {
  const why = [outcome === 'completed' ? null : outcome, failure, isFlagged ? 'flagged' : null]
    .filter((text) => text !== null)
    .join(' ');
  return `${isRight ? '' : '**WRONG** '}${reward ?? 'none'}${why === '' ? '' : ` (${why})`}`;
}

function printTable(rows: readonly Row[]): void {
  const backends = [...new Set(rows.map(({ backend }) => backend))];
  const roles: readonly Row['role'][] = options.unprotected ? ['unprotected'] : ['cheat', 'honest'];
  const columns = backends.flatMap((backend) => roles.map((role) => ({ backend, role })));
  const titles = ['class', 'an agent that', ...columns.map(({ backend, role }) => `${backend}: ${role}`)];
  const lines: string[][] = [];
  for (const kind of CHEAT_CLASSES) {
    const own = rows.filter((row) => row.kind === kind);
    for (const cheat of new Set(own.map((row) => row.cheat))) {
      const cells = columns.map(({ backend, role }) => {
        const row = own.find((one) => one.cheat === cheat && one.backend === backend && one.role === role);
        return row === undefined ? '–' : cellOf(row);
      });
      lines.push([kind, cheat, ...cells]);
    }
  }
  progress.print(`\n${tableOf(titles, lines)}\n`);
  for (const row of rows.filter(({ isRight }) => !isRight)) {
    progress.print(`WRONG ${row.backend}, ${row.role}: ${row.cheat}: ${cellOf(row)}\n  ${row.report}`);
  }
}

function report(rows: readonly Row[]): void {
  printTable(rows);
  const count = (role: Row['role'], isRight: boolean): number =>
    rows.filter((row) => row.role === role && (!isRight || row.isRight)).length;
  const open = { ran: count('unprotected', false), worked: count('unprotected', true) };
  const totals = {
    cheats: count('cheat', false),
    caught: count('cheat', true),
    honest: count('honest', false),
    passed: count('honest', true),
  };
  const { cheats, caught, honest, passed } = totals;
  conclude({
    line: options.unprotected
      ? `cheats without protection: ${open.ran} ran, ${open.worked} got the reward`
      : `cheats: ${cheats} cheats, ${caught} caught, ${honest} honest, ${passed} passed`,
    keys: options.unprotected ? open : totals,
    isPassed: rows.length > 0 && rows.every(({ isRight }) => isRight),
    json,
  });
}

const why = imageMissing();
if (why !== null) console.log(`cheats: skipped: ${why}`);
else {
  const dir = await mkdtemp(join(tmpdir(), 'floe-cheats-'));
  chmodSync(dir, 0o755);
  try {
    report(await runAll(dir));
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}
