// Trains the simulated policy with asynchronous GRPO: sessions run while the trainer works and while weights are updated.
//
//   floe up --sim --scenario examples/learn-sim/scenario.yaml
//   node examples/learn-sim/learn.ts --harness pi      (with Node 22.18 and newer, in the folder of the project)
//
// The trainer uses floe's client only: it reads batches of sessions with their token data, and updates weights with pause, version and
// resume. Like any trainer it knows its own policy: the choices and logits of the simulated engine (policy.ts).
import { parseArgs } from 'node:util';
import { FloeClient } from 'floe/client';
import { batchesOf, type NextBatch } from './batches.ts';
import { type GrpoOptions, type TrainedTokens, trainOn } from './grpo.ts';
import { type LogitTable, SoftmaxPolicy } from './policy.ts';

const SCENARIO = 'repair';
const GRPO: GrpoOptions = { learningRate: 8, epochs: 4, clip: 0.2 };

/** One step of the training: its sessions, and counts of their tokens. */
export type Step = TrainedTokens & {
  readonly version: string;
  readonly sessions: number;
  readonly meanReward: number;
  /** The logits after the step. */
  readonly logits: LogitTable;
};

/**
 * Trains the policy of the simulated engine at `engineUrl`, and yields each step after its weights are in effect. A step of a real trainer
 * takes as long as the rollouts of a batch. This one takes milliseconds, so it waits for the following batch before it updates the weights:
 * that batch was sampled by the version before.
 */
export async function* train(
  client: FloeClient,
  engineUrl: string,
  nextBatch: NextBatch,
  steps: number,
): AsyncGenerator<Step> {
  const policy = await SoftmaxPolicy.load(engineUrl, SCENARIO);
  let version = 'v0';
  const versions = new Map([[version, policy.parameters]]);
  let batch = await nextBatch(version);
  for (let step = 1; step <= steps; step++) {
    const trained = trainOn(batch, policy, versions, version, GRPO);
    const rewards = batch.flat().flatMap(({ reward }) => (reward === null ? [] : [reward]));
    if (step < steps) batch = await nextBatch(version);
    version = `v${step}`;
    versions.set(version, policy.parameters);
    await updateWeights(client, engineUrl, version, policy);
    const meanReward = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
    yield { version, sessions: rewards.length, meanReward, logits: policy.logits(), ...trained };
  }
}

/** Gives the engine new weights. Replies that are being sampled are frozen meanwhile and continue with the new weights. */
async function updateWeights(
  client: FloeClient,
  engineUrl: string,
  version: string,
  policy: SoftmaxPolicy,
): Promise<void> {
  await client.pauseEngines('keep');
  try {
    const reply = await fetch(`${engineUrl}/update_weights`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ version, logits: policy.logits() }),
    });
    if (!reply.ok) throw new Error(`the engine refused the weights: ${await reply.text()}`);
    await client.setPolicyVersion(version);
  } finally {
    await client.resumeEngines();
  }
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      url: { type: 'string', default: process.env.FLOE_URL ?? 'http://127.0.0.1:8080' },
      token: { type: 'string', default: process.env.FLOE_TOKEN },
      harness: { type: 'string', default: 'shell' },
      steps: { type: 'string', default: '10' },
    },
  });
  const client = new FloeClient({ url: values.url, ...(values.token === undefined ? {} : { token: values.token }) });
  try {
    const [engine] = (await client.engines()).engines;
    if (engine === undefined) throw new Error('floe has no engine; start it with --sim');
    const nextBatch = await batchesOf(client, values.harness);
    for await (const step of train(client, engine.base_url, nextBatch, Number(values.steps))) {
      const { version, sessions, meanReward, choices, tokens, stale } = step;
      const share = Math.round((100 * stale) / tokens);
      console.log(
        `${version}: mean reward ${meanReward.toFixed(2)} of ${sessions} sessions; ${tokens} tokens, ${choices} at a choice, ${share} % stale`,
      );
    }
  } finally {
    await client.close();
  }
}

if (/learn-sim\/learn\.[jt]s$/.test(process.argv[1] ?? '')) await main();
