// Trains the simulated policy for a few steps of asynchronous GRPO, with the trainer of learn.ts.
//
//   node examples/learn-sim/train.ts       (in a built clone, with Node 22.18 and newer)
import assert from 'node:assert/strict';
import { loadScenarios, startTestService } from 'floe/testing';
import { batchesOf } from './batches.ts';
import { train } from './learn.ts';

const scenarios = await loadScenarios(['examples/learn-sim/scenario.yaml']);
const { client, sim, close } = await startTestService({ sim: { scenarios, scaleOut: true, seed: 1 } });
try {
  const rewards: number[] = [];
  for await (const step of train(client, sim.url, await batchesOf(client, 'shell'), 5)) {
    console.log(`${step.version}: mean reward ${step.meanReward.toFixed(2)} of ${step.sessions} sessions`);
    assert.equal(step.impossible, 0, 'the policy can have sampled every trained token');
    assert.equal(step.mismatched, 0, 'every log-probability is that of the version that sampled the token');
    rewards.push(step.meanReward);
  }
  // The untrained policy, which succeeds in one of six sessions, sampled the sessions of the first two steps.
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const first = mean(rewards.slice(0, 2));
  const last = mean(rewards.slice(-2));
  console.log(`mean reward of the first two steps ${first.toFixed(2)}, of the last two ${last.toFixed(2)}`);
  assert.ok(last > first + 0.1, 'the mean reward rises');
} finally {
  await close();
}
