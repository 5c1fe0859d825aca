// Reads results from standard input, a line each, and prints what each harness reached on the same tasks.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const results = readFileSync(0, 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const table = {};
for (const harness of new Set(results.map(({ metadata }) => metadata.harness))) {
  const own = results.filter(({ metadata, reward }) => metadata.harness === harness && reward !== null);
  assert.ok(own.length > 0, harness);
  table[harness] = {
    sessions: own.length,
    'mean reward': Number(mean(own.map(({ reward }) => reward)).toFixed(2)),
    'model calls': Number(mean(own.map(({ completion_count }) => completion_count)).toFixed(1)),
    'trained tokens': Math.round(mean(own.map(({ trainable_tokens }) => trainable_tokens))),
  };
}
console.table(table);
console.log(`${results.length} sessions of ${Object.keys(table).length} harnesses`);
