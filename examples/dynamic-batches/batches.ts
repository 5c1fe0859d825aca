// Trains on batches of informative groups. A stream samples the rows of a data set and drops groups whose rewards are all equal. It hands out
// the other groups in the format of a trainer.
//
//   node examples/dynamic-batches/batches.ts       (in a built clone, with Node 22.18 and newer)
import assert from 'node:assert/strict';
import { type ScenarioInput, startTestService } from 'floe/testing';

/** The agent repeats the policy's answer, which the evaluator compares with the row's. */
const custom_shell = `node -e '
  fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
    body: JSON.stringify({ model: "policy", messages: [{ role: "user", content: "Heads or tails?" }] }),
  }).then((reply) => reply.json()).then((reply) => console.log(reply.choices[0].message.content))'`;
const options = ['heads', 'tails'].map((text) => ({ logit: 0, reply: [{ text }] }));
const coin: ScenarioInput = { name: 'coin', rules: [{ reply: [{ choice: { id: 'coin', options } }] }] };

const { client, close } = await startTestService({ sim: { scenarios: [coin] } });
try {
  const { batch_id } = await client.createBatchStream({
    source: { kind: 'rows', rows: [{ answer: 'heads' }, { answer: 'tails' }, { answer: 'heads' }, { answer: 'edge' }] },
    task: {
      instruction: 'Heads or tails?',
      num_samples: 4,
      agent: { harness: 'shell', custom_shell },
      evaluator: { strategy: 'answer', config: { kind: 'exact', expected: '{{row.answer}}' } },
    },
    batch_size: 3,
    order: { kind: 'shuffled', seed: 1 },
  });

  let step = 0;
  for await (const batch of client.batches(batch_id, { policyVersion: () => `step-${step}`, format: 'trl_async' })) {
    // A trainer takes an optimizer step with batch.records here, and pushes the new weights.
    step += 1;
    console.log(
      `batch ${batch.batch}: rows ${batch.groups.map((group) => group.row_index)}, ${batch.records?.length} samples`,
    );
    // The answer to row 3 is never right, so its groups are not informative.
    assert.ok(batch.groups.every(({ row_index, mean_reward }) => row_index !== 3 && (mean_reward ?? 0) > 0));
    if (step === 3) break;
  }
  const { progress } = await client.endBatchStream(batch_id);
  assert.equal(progress.handed, 9);
  console.log(`rejected: ${JSON.stringify(progress.rejected)}`);
} finally {
  await close();
}
