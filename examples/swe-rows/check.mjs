// Reads tasks from standard input, a line each, and checks that they have what a session needs and nothing of the solution.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const tasks = readFileSync(0, 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));
for (const { instruction, runtime, evaluator, agent } of tasks) {
  assert.match(instruction, /UsernameValidator/);
  assert.match(runtime.image, /sweb\.eval\.x86_64/);
  assert.equal(evaluator.strategy, 'swebench');
  assert.doesNotMatch(instruction, /trailingnewline/);
  console.log(agent.harness, runtime.image);
}
console.log(`${tasks.length} tasks`);
