// The data of the trainer: batches of groups of sessions of the task in task.json, sampled for each row of rows.jsonl.
import { readFile } from 'node:fs/promises';
import type { FloeClient } from 'floe/client';
import type { SessionResult } from 'floe/schema';

const FOLDER = 'examples/learn-sim';
/** Number of groups of a batch. With the bound on staleness, floe samples one batch in advance while the trainer works. */
const BATCH_GROUPS = 4;

/** Returns the next batch: for each of its groups the ended sessions. `version` is the version of the policy that samples now. */
export type NextBatch = (version: string) => Promise<SessionResult[][]>;

/** Creates a stream of batches whose agent is `harness`, and returns a function that waits for its next batch. */
export async function batchesOf(client: FloeClient, harness: string): Promise<NextBatch> {
  const { batch_id } = await client.createBatchStream({
    source: { kind: 'rows', rows: await rows() },
    task: { ...JSON.parse(await text('task.json')), agent: await agentOf(harness) },
    batch_size: BATCH_GROUPS,
    max_staleness: 1,
    // With `keep`, the mean reward of a batch is the mean reward of all sessions. For training alone, groups with equal rewards can be left
    // out, which is the default.
    accept: { zero_variance: 'keep' },
  });
  let after = 0;
  return async (version) => {
    for (;;) {
      const { batch, groups } = await client.nextBatch(batch_id, { after, policyVersion: version });
      if (batch === null) continue;
      after = batch;
      return groups.map(({ results }) => (results ?? []) as SessionResult[]);
    }
  };
}

async function rows(): Promise<Record<string, unknown>[]> {
  return (await text('rows.jsonl'))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
}

async function agentOf(harness: string): Promise<object> {
  if (harness !== 'shell') return { harness };
  // The shell command starts the small agent of this folder, which reaches the sandbox in a variable.
  return { harness, custom_shell: 'node --input-type=module -e "$AGENT"', env: { AGENT: await text('agent.mjs') } };
}

function text(name: string): Promise<string> {
  return readFile(`${FOLDER}/${name}`, 'utf8');
}
