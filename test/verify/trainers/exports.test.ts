import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seededRandom } from '@floe-rl/core';
import { expect, it, onTestFinished } from 'vitest';
import { writeOwnRows } from '../../../verify/trainers/exports.ts';
import { sabotagedResults } from '../../../verify/trainers/sabotage.ts';
import { randomTrajectories } from '../../../verify/trainers/trajectories.ts';

it('writeOwnRows writes the results without a defect, and the rows of the defective results with advantages in both encodings', () => {
  const folder = mkdtempSync(join(tmpdir(), 'floe-exports-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const results = randomTrajectories(8, seededRandom(3), { oneTrace: true });
  const defective = sabotagedResults(results, 'retokenise', seededRandom(1));
  writeOwnRows(folder, results, defective);
  const lines = (name: string) => readFileSync(join(folder, name), 'utf8').split('\n').slice(0, -1);
  const written = lines('results.jsonl').map((line) => JSON.parse(line));
  expect(written).toEqual(JSON.parse(JSON.stringify(results)));
  const rows = lines('trained.jsonl').map((line) => JSON.parse(line));
  const traces = defective.flatMap(({ trajectory }) => trajectory?.traces ?? []);
  expect(rows.map(({ trace_id, response_ids }) => [trace_id, response_ids])).toEqual(
    traces.map(({ trace_id, response_ids }) => [trace_id, response_ids]),
  );
  expect(rows.every(({ advantages, response_ids }) => advantages.length === response_ids.length)).toBe(true);
  expect(readFileSync(join(folder, 'trained.arrow')).includes('advantages')).toBe(true);
});
