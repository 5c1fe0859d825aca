// Submits a task whose agent is one shell command, and collects its results as a trainer does.
//
//   node examples/submit-and-collect/collect.ts       (in a built clone, with Node 22.18 and newer)
import assert from 'node:assert/strict';
import { startTestService } from 'floe/testing';

// Starts a rollout server, a node and a simulated engine in this process. To use a running floe instead, create `new FloeClient({ url })`
// from `floe/client`.
const { client, close } = await startTestService();
try {
  const { task_id, session_ids } = await client.submit({
    instruction: 'Say hello.',
    num_samples: 2,
    agent: {
      harness: 'shell',
      custom_shell: `node -e '
        fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
          method: "POST",
          headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
          body: JSON.stringify({ model: "policy", messages: [{ role: "user", content: "Say hello." }] }),
        }).then((reply) => reply.json()).then((reply) => console.log(reply.choices[0].message.content))'`,
    },
    evaluator: { strategy: 'session_completed' },
  });
  console.log(`task ${task_id}: ${session_ids.length} sessions`);

  let count = 0;
  for await (const result of client.results()) {
    const [trace] = result.trajectory?.traces ?? [];
    assert.ok(trace, 'the session has a trace');
    const trained = trace.loss_mask.filter((bit) => bit === 1).length;
    console.log(`${result.session_id}: ${result.outcome}, reward ${result.reward}, ${trained} trainable tokens`);
    assert.equal(result.reward, 1);
    assert.equal(trained, trace.response_logprobs.length);
    if (++count === session_ids.length) break;
  }
} finally {
  await close();
}
