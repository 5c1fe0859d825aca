// Runs one task as a group of eight samples with rewards of 0 and 1, and computes the group-relative advantages as a GRPO trainer does.
//
//   node examples/group-advantages/advantages.ts       (in a built clone, with Node 22.18 and newer)
import assert from 'node:assert/strict';
import type { SessionResult } from 'floe/schema';
import { type ScenarioInput, startTestService } from 'floe/testing';

/** The agent asks the policy for a number and writes the reply to answer.txt. The evaluator's test passes when the file contains 42. */
const agent = {
  harness: 'shell',
  custom_shell: `node -e '
    fetch(process.env.ANTHROPIC_BASE_URL + "/v1/messages", {
      method: "POST",
      headers: { "x-api-key": process.env.ANTHROPIC_API_KEY, "content-type": "application/json" },
      body: JSON.stringify({ model: "policy", max_tokens: 64, messages: [{ role: "user", content: "Name the number." }] }),
    }).then((reply) => reply.json()).then((reply) => require("fs").writeFileSync("answer.txt", reply.content.at(-1).text))'`,
};
/** Makes the simulated policy reply 42 or 41; 42 is more probable. */
const scenario: ScenarioInput = {
  name: 'number',
  match: { contains: 'Name the number' },
  rules: [
    {
      reply: [
        {
          choice: {
            id: 'number',
            options: [
              { logit: 0.3, reply: [{ text: '42' }] },
              { logit: 0, reply: [{ text: '41' }] },
            ],
          },
        },
      ],
    },
  ],
};

const { client, close } = await startTestService({ sim: { scenarios: [scenario] } });
try {
  const { session_ids } = await client.submit({
    instruction: 'Name the number.',
    num_samples: 8,
    agent,
    sampling: { seed: 3 },
    evaluator: {
      strategy: 'test_on_output',
      refresh_runtime: false,
      config: {
        test_command: 'grep -q 42 answer.txt && echo "PASSED answer" || echo "FAILED answer"',
        expected_output_json: { answer: 'PASSED' },
      },
    },
  });

  const group: SessionResult[] = [];
  for await (const result of client.results()) if (group.push(result) === session_ids.length) break;

  // A reward that could not be computed is `null`. It is excluded from the mean instead of counting as 0.
  const rewards = group.flatMap(({ policy, reward }) => (policy.in_baseline && reward !== null ? [reward] : []));
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const deviation = Math.sqrt(rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / rewards.length);
  for (const { sample_index, reward, trajectory } of group) {
    if (reward === null || trajectory === null) continue;
    const advantage = (reward - mean) / (deviation + 1e-6);
    for (const trace of trajectory.traces) {
      const logprob = trace.response_logprobs.reduce((sum, value) => sum + value, 0);
      console.log(
        `#${sample_index} reward ${reward} advantage ${advantage.toFixed(2)} log-probability ${logprob.toFixed(3)}`,
      );
    }
  }
  console.log(`mean reward ${mean}`);
  assert.ok(mean > 0 && mean < 1, 'the group is informative');
} finally {
  await close();
}
