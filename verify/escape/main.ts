// `npm run verify -- escape`: agents that try to leave their sandbox, and agents that use up resources in many sandboxes at the same time, in
// every runtime of this machine that isolates. Prints a table of the actions by runtime. Ends with
// "escape: R runtimes, P probes, D denied, W weaknesses, O open; B bombs, H held, neighbours' p99 X times".
//
//   npm run verify -- escape [--only TEXT] [--parallel N] [--json [FILE]]
//
// Weaknesses are actions that a runtime cannot prevent, and that docs/runtimes.md names. `--only` selects the runtimes whose name contains TEXT;
// `--parallel` is the number of sandboxes with the same bomb (64 by default; 0 leaves the bombs out).

import { join } from 'node:path';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import { debianImageMissing } from '../fixtures/debian-image.ts';
import { readOptions } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { dockerMissing } from '../services/docker-daemon.ts';
import { podmanMissing } from '../services/podman-service.ts';
import { findTool } from '../services/tools.ts';
import { runNode, unprivilegedMissing } from '../services/unprivileged.ts';
import { PACKAGES } from './image.ts';
import type { Findings, Skipped } from './sandboxes.ts';
import { weaknessOf } from './weaknesses.ts';

const { options, json } = readOptions({
  only: { type: 'string', default: '' },
  parallel: { type: 'string', default: '64' },
});

/** A runtime as a certain user. */
type Variant = { readonly name: string; readonly backend: RuntimeBackend; readonly asUser: boolean };

const isRoot = process.getuid?.() === 0;
const VARIANTS: readonly Variant[] = [
  { name: 'bubblewrap', backend: 'bubblewrap', asUser: false },
  ...(isRoot ? [{ name: 'bubblewrap, not root', backend: 'bubblewrap' as const, asUser: true }] : []),
  { name: 'docker', backend: 'docker', asUser: false },
  { name: 'podman', backend: 'podman', asUser: false },
  ...(isRoot ? [{ name: 'podman, not root', backend: 'podman' as const, asUser: true }] : []),
  { name: 'apptainer', backend: 'apptainer', asUser: isRoot },
];

type Column = { readonly variant: Variant; readonly findings: Findings };

/** Returns why a runtime cannot run on this machine; `null` when it may. */
async function missing({ backend, asUser }: Variant): Promise<string | null> {
  const reason = debianImageMissing(PACKAGES) ?? (asUser ? unprivilegedMissing() : null);
  if (reason !== null || asUser) return reason;
  if (backend === 'docker') return dockerMissing();
  if (backend === 'podman') return podmanMissing();
  return backend === 'apptainer' && findTool('apptainer') === null ? 'apptainer is not installed' : null;
}

async function run(variant: Variant): Promise<Column | null> {
  const { name, backend, asUser } = variant;
  console.log(`▸ ${name}`);
  const reason = await missing(variant);
  const outcome = reason === null ? await start(backend, asUser) : { skipped: reason };
  if ('skipped' in outcome) {
    console.log(`escape: ${name} is skipped, because ${outcome.skipped}`);
    return null;
  }
  return { variant, findings: outcome };
}

async function start(backend: RuntimeBackend, asUser: boolean): Promise<Findings | Skipped> {
  const program = join(repositoryRoot(), '.build', 'verify', 'escape', 'sandboxes.js');
  const { status, stdout } = await runNode([program, backend, options.parallel], { asUser });
  if (status !== 0) throw new Error(`the program that runs the probes in ${backend} ended with ${status}`);
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Findings | Skipped;
}

type Verdict = 'denied' | 'weakness' | 'OPEN';

function verdictOf({ backend }: Variant, name: string, seen: readonly string[]): Verdict {
  if (seen.length === 0) return 'denied';
  return weaknessOf(backend, name) === null ? 'OPEN' : 'weakness';
}

function probeTable(columns: readonly Column[]): string {
  const head = ['an agent tries to', ...columns.map(({ variant }) => variant.name)];
  const rows = (columns[0]?.findings.probes ?? []).map(({ kind, name }) => [
    `${kind}: ${name}`,
    ...columns.map(({ variant, findings }) => {
      const probe = findings.probes.find((each) => each.name === name);
      return probe === undefined ? '–' : verdictOf(variant, name, probe.seen);
    }),
  ]);
  return tableOf(head, rows);
}

function bombTable(columns: readonly Column[]): string {
  const head = ['a command', ...columns.map(({ variant }) => variant.name)];
  const rows = (columns[0]?.findings.bombs ?? []).map(({ name }) => [
    name,
    ...columns.map(({ findings }) => {
      const bomb = findings.bombs.find((each) => each.name === name);
      if (bomb === undefined) return '–';
      const ends = Object.entries(bomb.ends).map(([end, count]) => `${count} ${end}`);
      return `${ends.join(', ')}; neighbours ×${bomb.neighbours.toFixed(2)}`;
    }),
  ]);
  return tableOf(head, rows);
}

const columns: Column[] = [];
for (const variant of VARIANTS.filter(({ name }) => name.includes(options.only))) {
  const column = await run(variant);
  if (column !== null) columns.push(column);
}
const probes = columns.flatMap(({ variant, findings }) =>
  findings.probes.map((probe) => ({
    runtime: variant.name,
    ...probe,
    verdict: verdictOf(variant, probe.name, probe.seen),
  })),
);
const bombs = columns.flatMap(({ variant, findings }) =>
  findings.bombs.map((bomb) => ({ runtime: variant.name, ...bomb })),
);
const left = columns.flatMap(({ variant, findings }) => findings.left.map((what) => `${variant.name}: ${what}`));
if (columns.length > 0) console.log(`\n${probeTable(columns)}\n\n${bombTable(columns)}\n`);
for (const { runtime, name, seen, verdict } of probes) {
  if (verdict !== 'denied')
    console.log(`${verdict} in ${runtime}: ${name}: ${seen.slice(0, 5).join('; ').slice(0, 500)}`);
}
for (const { runtime, name, seen } of bombs)
  if (seen.length > 0) console.log(`BROKE in ${runtime}: ${name}: ${seen.join('; ')}`);
for (const what of left) console.log(`LEFT ${what}`);

const count = (verdict: Verdict): number => probes.filter((probe) => probe.verdict === verdict).length;
const ratios = bombs.map(({ neighbours }) => neighbours);
const keys = {
  runtimes: columns.length,
  probes: probes.length,
  denied: count('denied'),
  weaknesses: count('weakness'),
  open: count('OPEN'),
  bombs: bombs.length,
  held: bombs.filter(({ seen }) => seen.length === 0).length,
  left: left.length,
  neighbours_p99_ratio: ratios.length === 0 ? null : Math.max(...ratios),
};
const ratio =
  keys.neighbours_p99_ratio === null ? '' : `, neighbours' p99 at most ×${keys.neighbours_p99_ratio.toFixed(2)}`;
const line =
  `escape: ${keys.runtimes} runtimes, ${keys.probes} probes, ${keys.denied} denied, ${keys.weaknesses} weaknesses, ${keys.open} open; ` +
  `${keys.bombs} bombs, ${keys.held} held, ${keys.left} left${ratio}`;
const isPassed = keys.runtimes > 0 && keys.open === 0 && keys.held === keys.bombs && keys.left === 0;
conclude({ line, keys, details: { ...keys, columns }, isPassed, json });
