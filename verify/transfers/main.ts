// `npm run verify -- transfers`: transfers between host and sandboxes whose paths, archives and patches are hostile. No byte outside of the
// session's directory may be read or written, limits must hold, and failures must have an error code.
//
//   npm run verify -- transfers [--runtime NAME] [--only TEXT] [--seed N] [--json]
//
// The last line of output is "transfers: N cases, N held, N broke"; with --json, a JSON object follows.
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom } from '@floe-rl/core';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { archiveCases } from './archive-cases.ts';
import { BENCHES, Bench } from './bench.ts';
import { type Case, type Finding, judge } from './case.ts';
import { Guard } from './guard.ts';
import { hazardCases, patchCases, sourceCases } from './sandbox-cases.ts';

const { options, json } = readOptions({
  runtime: { type: 'string' },
  only: { type: 'string', default: '' },
  seed: { type: 'string', default: '1' },
});

const progress = new Progress();

async function runAll(cases: readonly Case[], guard: Guard, findings: Finding[]): Promise<void> {
  for (const [index, one] of cases.filter(({ name }) => name.includes(options.only)).entries()) {
    progress.show(`${one.backend}: ${index + 1} of ${cases.length}`);
    const seen = await judge(one, guard);
    findings.push({ backend: one.backend, name: one.name, seen });
    if (seen.length > 0) progress.print(`BROKE ${one.backend}: ${one.name}\n  ${seen.join('\n  ')}`);
  }
}

async function main(dir: string): Promise<void> {
  const guard = await Guard.create(join(dir, 'guard'));
  const findings: Finding[] = [];
  const random = seededRandom(Number(options.seed));
  if (options.runtime === undefined) await runAll(archiveCases(), guard, findings);
  for (const backend of BENCHES.filter((name) => options.runtime === undefined || name === options.runtime)) {
    const uploads = join(dir, `uploads-${backend}`);
    await mkdir(uploads);
    const bench = await Bench.open(backend, join(dir, `state-${backend}`));
    if (typeof bench === 'string') {
      progress.print(`${backend} is skipped, because ${bench}`);
      continue;
    }
    try {
      await runAll(sourceCases(bench, uploads, guard), guard, findings);
      await runAll(patchCases(bench, guard), guard, findings);
      await runAll(hazardCases(bench, uploads, guard, random), guard, findings);
    } finally {
      await bench.close();
    }
  }
  report(findings);
}

function report(findings: readonly Finding[]): void {
  const backends = [...new Set(findings.map(({ backend }) => backend))];
  const rows = backends.map((backend) => {
    const own = findings.filter((finding) => finding.backend === backend);
    return [backend, own.length, own.filter(({ seen }) => seen.length === 0).length];
  });
  progress.print(`\n${tableOf(['where', 'cases', 'held'], rows)}\n`);
  const held = findings.filter(({ seen }) => seen.length === 0).length;
  const totals = { cases: findings.length, held, broke: findings.length - held };
  const line = `transfers: ${totals.cases} cases, ${totals.held} held, ${totals.broke} broke`;
  conclude({ line, keys: totals, isPassed: totals.broke === 0 && totals.cases > 0, json });
}

const dir = await mkdtemp(join(tmpdir(), 'floe-transfers-'));
try {
  await main(dir);
} finally {
  await rm(dir, { recursive: true, force: true });
}
