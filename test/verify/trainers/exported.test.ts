import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom } from '@floe-rl/core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { exportFiles, writeFiles } from '../../../verify/trainers/exports.ts';
import { runTrainer } from '../../../verify/trainers/trainers.ts';
import { randomTrajectories, withLogprobs } from '../../../verify/trainers/trajectories.ts';

const PROGRAMS = join(repositoryRoot(), 'verify', 'trainers', 'programs');

/** A program that compares the rows with computed logprobs. `COMPUTED` makes these from a row's own logprobs, in place of the trainer's. */
const PROGRAM = `
import sys
from pathlib import Path
sys.path.insert(0, ${JSON.stringify(PROGRAMS)})
from exported import Cases, floe_rows, print_report, trained_rows
folder = Path(sys.argv[1])
cases = Cases()
for row in trained_rows(folder):
    cases.check_logprobs(row, COMPUTED(row.trained_logprobs()))
print_report(cases, trainer="example", version=str(len(floe_rows(folder))), how="a real training step", rows=cases.passed + cases.failed)
`;

describe('the comparison of logprobs by the programs of trainers', () => {
  let folder: string;
  let trained = 0;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'floe-exported-'));
    const random = seededRandom(2);
    const results = randomTrajectories(8, random, { oneTrace: true });
    const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
    trained = results.filter(({ policy }) => policy.use === 'train').length;
    const logprobs = traces.map(({ trace_id, prompt_ids, response_ids }) => {
      return [trace_id, [...prompt_ids, ...response_ids].map(() => -1 - random())] as const;
    });
    const withValues = withLogprobs(results, new Map(logprobs));
    writeFiles(folder, exportFiles(withValues, withValues));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  function compare(computed: string) {
    const program = join(folder, 'example.py');
    writeFileSync(program, PROGRAM.replace('COMPUTED', `(${computed})`));
    const trainer = { name: 'example', program, environment: null };
    return runTrainer(trainer, 'python3', folder, join(folder, 'example.log'));
  }

  it('passes for every row whose logprobs are equal in float32, and reads all rows', async () => {
    const report = await compare('lambda values: [value + 1e-7 for value in values]');
    expect(report).toMatchObject({ passed: trained, failed: 0, version: '8', failures: [] });
    expect(report.largest_difference).toBeCloseTo(1e-7, 9);
  });

  it.each([
    ['a logprob that is missing', 'lambda values: values[1:]'],
    ['a logprob that differs', 'lambda values: [values[0] + 0.002, *values[1:]]'],
    ['a logprob that is not a number', 'lambda values: [float("nan"), *values[1:]]'],
  ])('fails for %s', async (_, computed) => {
    expect(await compare(computed)).toMatchObject({ passed: 0, failed: trained });
  });
});
