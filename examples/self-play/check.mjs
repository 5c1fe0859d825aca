// Reads results from standard input, a line each, and checks that the sides of each game have traces and rewards of their own.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const results = readFileSync(0, 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));
let won = 0;
for (const { session_id, outcome, reward, trajectory } of results) {
  assert.equal(outcome, 'completed', session_id);
  const [x, o] = trajectory.traces;
  console.log(session_id, 'x', x.reward, 'o', o.reward);
  assert.equal(trajectory.traces.length, 2);
  assert.equal(x.reward + o.reward, 1);
  assert.equal(reward, x.reward);
  won += reward;
}
assert.ok(won > 0 && won < results.length);
console.log(`${results.length} games, ${won} won by x`);
