// `npm run verify -- hostile`: runs agents that cheat, try to escape from the sandbox or use up resources, in 64 parallel sessions of a real
// floe. Honest sessions run at the same time, and must have the same results as without attacks.
//
//   npm run verify -- hostile [--only TEXT] [--copies N] [--quick] [--json]
//
// The last line of output is "hostile: A attacks, H held, B broke"; with --json, a JSON object follows. B includes broken guarantees of the run as a whole.
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isAlive, readProcess } from '#sandbox/processes/process-table';
import { checkLeaks } from '../faults/checks.ts';
import { PERL } from '../fixtures/launcher.ts';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude } from '../runner/report.ts';
import { runtimeProblem } from '../services/runtime-provider.ts';
import { ATTACK_CLASSES, type Attack, type Target } from './attack.ts';
import { attacksOn } from './attacks.ts';
import { judgeAttack, judgeNeighbour } from './judge.ts';
import type { Lag } from './lag.ts';
import { attackId, PARALLEL_SESSIONS, Storm, type Wave } from './storm.ts';
import { Host } from './target.ts';

const { options, json } = readOptions({
  only: { type: 'string', default: '' },
  copies: { type: 'string' },
  quick: { type: 'boolean', default: false },
});

/** Number of copies of each attack in a full run. Several copies run at the same time. */
const FULL_COPIES = 3;
/** Maximum 99th percentile, in ms, of the delay of the node's event loop during the attacks. A larger delay is a finding. */
const MAX_LAG_P99_MS = 50;
/**
 * The delay during the attacks is judged only in a full run, and only when its 99th percentile without attacks was below this value in ms.
 * Otherwise the machine itself is too busy.
 */
const QUIET_LAG_P99_MS = 25;
/** Maximum resident memory of the node in MiB. It is several times the memory of a node with 64 honest sessions. More memory is a finding. */
const MAX_NODE_MB = 2048;
/**
 * Maximum time in ms for which an attack may block the node's event loop when no other programs keep the machine busy. The longest pause
 * without attacks is added to it.
 */
const MAX_PAUSE_MS = 1_000;
/**
 * Maximum time in ms for which the node's event loop may be blocked in a quick run, or when other programs keep the machine busy. Those
 * programs alone do not block it for so long.
 */
const MAX_BUSY_PAUSE_MS = 10_000;

/** The kind of the rows of the report that concern the run as a whole and not one attack. */
const WHOLE_RUN = 'whole run';

type Row = { readonly kind: string; readonly name: string; readonly seen: readonly string[] };

const progress = new Progress();

/** Returns why the attacks cannot run on this machine; `null` when they can. */
async function whyNot(): Promise<string | null> {
  for (const path of [PERL, '/usr/bin/curl', '/usr/bin/git']) {
    if (!existsSync(path)) return `${path} is missing: install it, since the agents run it`;
  }
  const dir = await mkdtemp(join(tmpdir(), 'floe-probe-'));
  try {
    return await runtimeProblem('bubblewrap', dir);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

async function judgeAll(storm: Storm, wave: Wave, attacks: readonly Attack[], copies: number, target: Target) {
  const rows: Row[] = [];
  const ledger = storm.service.sim.ledger.entries();
  for (const [index, attack] of attacks.entries()) {
    const seen: string[] = [];
    for (let copy = 0; copy < copies; copy++) {
      const result = wave.results.get(attackId(index, copy));
      seen.push(...(await judgeAttack(attack, result, storm.trainer, target, ledger)));
    }
    rows.push({ kind: attack.kind, name: `an agent that ${attack.name}`, seen: [...new Set(seen)] });
  }
  return rows;
}

function neighboursOf(storm: Storm, wave: Wave): string[] {
  const ledger = storm.service.sim.ledger.entries();
  return wave.neighbours.flatMap(({ id, reward }) => judgeNeighbour(wave.results.get(id), reward, ledger));
}

/** Returns one row of the report for each guarantee that concerns the run as a whole. */
async function wholeRun(storm: Storm, host: Host, target: Target, wave: Wave, control: Wave): Promise<Row[]> {
  const row = (name: string, seen: readonly string[]): Row => ({ kind: WHOLE_RUN, name, seen });
  const dead = target.pids.filter((pid) => !isAlive(readProcess(pid))).map((pid) => `process ${pid} of floe ended`);
  const { violations, duplicates } = storm.trainer;
  return [
    row(`${wave.neighbours.length} honest sessions beside the attacks`, neighboursOf(storm, wave)),
    row("floe's processes survive", dead),
    row('every session has one result', [...violations, ...duplicates]),
    row('no connection from a sandbox to the host', host.connections === 0 ? [] : [`${host.connections} connections`]),
    row(
      'no process and no file of a session is left',
      await checkLeaks(storm.service.marker, storm.service.stateDirs()),
    ),
    row("the node's event loop", judgeLag(wave.lag, control.lag)),
    row(
      "the node's memory",
      wave.nodePeakMb > MAX_NODE_MB ? [`${wave.nodePeakMb.toFixed(0)} MiB, more than ${MAX_NODE_MB}`] : [],
    ),
  ];
}

function judgeLag(lag: Lag, control: Lag): string[] {
  const isJudged = whyNotJudged(control) === null;
  const maxPauseMs = isJudged ? MAX_PAUSE_MS + control.maxMs : MAX_BUSY_PAUSE_MS;
  return [
    ...(isJudged && lag.p99Ms > MAX_LAG_P99_MS ? [`delay p99 ${lag.p99Ms.toFixed(1)} ms`] : []),
    ...(lag.maxMs > maxPauseMs ? [`it stood still for ${lag.maxMs.toFixed(0)} ms`] : []),
  ];
}

/** Returns why the 99th percentile of the delay is not judged; `null` when it is. */
function whyNotJudged(control: Lag): string | null {
  if (options.quick) return 'a quick run only shows it';
  if (control.p99Ms < QUIET_LAG_P99_MS) return null;
  return `with honest sessions alone its p99 was ${QUIET_LAG_P99_MS} ms or more, so other programs keep the processors busy`;
}

function print(rows: readonly Row[], wave: Wave, control: Wave): void {
  const width = 12;
  progress.print(`\n${'class'.padEnd(width)}${'attacks'.padStart(9)}${'held'.padStart(7)}${'broke'.padStart(7)}`);
  for (const kind of [...ATTACK_CLASSES, WHOLE_RUN]) {
    const own = rows.filter((row) => row.kind === kind);
    if (own.length === 0) continue;
    const broke = own.filter(({ seen }) => seen.length > 0);
    const counts = [own.length, own.length - broke.length, broke.length];
    progress.print(
      `${kind.padEnd(width)}${counts.map((count, column) => String(count).padStart(column === 0 ? 9 : 7)).join('')}`,
    );
    for (const { name, seen } of broke) {
      progress.print(`  BROKE ${name}`);
      for (const text of seen.slice(0, 6)) progress.print(`        ${text.replaceAll('\n', '\n        ')}`);
    }
  }
  const shown = ({ lag: { p99Ms, maxMs }, nodePeakMb }: Wave): string =>
    `event loop of the node p99 ${p99Ms.toFixed(1)} ms, longest ${maxMs.toFixed(0)} ms; memory up to ${nodePeakMb.toFixed(0)} MiB`;
  progress.print(`\n${control.results.size} honest sessions alone: ${control.seconds.toFixed(1)} s; ${shown(control)}`);
  progress.print(
    `${wave.results.size} sessions, ${PARALLEL_SESSIONS} at a time: ${wave.seconds.toFixed(1)} s; ${shown(wave)}`,
  );
  const why = whyNotJudged(control.lag);
  if (why !== null) progress.print(`the delay of the event loop was not judged: ${why}`);
}

async function main(): Promise<void> {
  const why = await whyNot();
  if (why !== null) {
    console.log(`hostile: skipped: ${why}`);
    return;
  }
  const copies = Number(options.copies ?? (options.quick ? 1 : FULL_COPIES));
  const host = await Host.open();
  let storm: Storm | null = null;
  try {
    storm = await Storm.start(host);
    if (storm.launcherProblem !== null) {
      progress.print(`no secrets in a keyring and in descriptors: the launcher failed (${storm.launcherProblem})`);
    }
    const target = await storm.plant(host);
    const control = await storm.run([], 1, (open) => progress.show(`honest sessions alone: ${open} left`));
    const attacks = attacksOn(target).filter(({ name, kind }) => `${kind} ${name}`.includes(options.only));
    const wave = await storm.run(attacks, copies, (open) => progress.show(`attacks: ${open} sessions left`));
    const rows = await judgeAll(storm, wave, attacks, copies, target);
    const before = neighboursOf(storm, control).map((text) => `before the attacks: ${text}`);
    await storm.cancelRunning();
    rows.push(...(await wholeRun(storm, host, target, wave, control)));
    rows.push({ kind: WHOLE_RUN, name: 'the honest sessions before the attacks', seen: before });
    report(rows, wave, control);
  } finally {
    await storm?.service.close();
    await host.close();
  }
}

function report(rows: readonly Row[], wave: Wave, control: Wave): void {
  print(rows, wave, control);
  const broke = rows.filter(({ seen }) => seen.length > 0);
  const attacks = rows.filter(({ kind }) => kind !== WHOLE_RUN);
  const held = attacks.filter(({ seen }) => seen.length === 0).length;
  const keys = {
    attacks: attacks.length,
    held,
    broke: broke.length,
    lag_p99_ms: wave.lag.p99Ms,
    lag_max_ms: wave.lag.maxMs,
    control_lag_p99_ms: control.lag.p99Ms,
    control_lag_max_ms: control.lag.maxMs,
    node_peak_mb: wave.nodePeakMb,
    neighbours: wave.neighbours.length,
    seconds: wave.seconds,
    findings: broke,
  };
  const line = `hostile: ${attacks.length} attacks, ${held} held, ${broke.length} broke`;
  conclude({ line, keys, isPassed: broke.length === 0, json });
}

await main();
