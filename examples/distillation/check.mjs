// Checks the files of a run of `floe generate`: every conversation in sft.jsonl ends with the answer of its row, and every pair prefers it.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const lines = (path) =>
  readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
const [dir, data] = process.argv.slice(2);
const rows = lines(data);
const answerOf = ({ messages }) => {
  const calls = messages.findLast(({ role }) => role === 'assistant').tool_calls;
  return JSON.parse(calls[0].function.arguments).answer;
};
const sft = lines(join(dir, 'sft.jsonl'));
for (const one of sft) {
  assert.equal(answerOf(one), rows[one.row].answer);
  assert.equal(one.loss_mask.length, one.response_ids.length);
}
const pairs = lines(join(dir, 'preference.jsonl'));
for (const { row, chosen, rejected } of pairs) {
  assert.equal(answerOf(chosen), rows[row].answer);
  assert.notEqual(answerOf(rejected), rows[row].answer);
}
const labels = lines(join(dir, 'verifier.jsonl')).map(({ label }) => label);
assert.ok(labels.includes(0) && labels.includes(1));
console.log(`${sft.length} conversations for SFT, ${pairs.length} pairs, ${labels.length} samples with labels`);
