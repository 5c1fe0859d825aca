// A trainer in a separate process, which the program `batches` kills at random moments. It requests the batches of a stream, and appends each
// batch to its checkpoint before it requests the next batch. It requests each batch from all servers at the same time, and fails when they
// return different batches. It ends after the last batch.
//
// Arguments: the servers' URLs, separated by commas; the stream's id; the checkpoint's path; and optionally `versions`, to name a new policy
// version in each request.
import { existsSync, readFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { FloeClient } from '@floe-rl/client';
import type { BatchReply, SessionResult } from '@floe-rl/core/schema';

/** A batch as it was trained: the rows of its groups and the ids of their sessions. */
export type TrainedBatch = {
  readonly batch: number;
  readonly groups: readonly { readonly row: number; readonly group_id: string; readonly sessions: readonly string[] }[];
};

/** Returns the batches of a checkpoint, in order. A last line that was cut off by a kill is left out. */
export function readCheckpoint(path: string): TrainedBatch[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, 'utf8').split('\n');
  // The last element is empty, or a line that was not written completely.
  return lines.slice(0, -1).map((line) => JSON.parse(line) as TrainedBatch);
}

/** Longest time in seconds that a server holds a request for a batch. */
const WAIT_SECONDS = 5;

async function train(urls: readonly string[], stream: string, checkpoint: string, namesVersions: boolean) {
  const clients = urls.map((url) => new FloeClient({ url, retrySeconds: 120 }));
  const done = readCheckpoint(checkpoint);
  const file = await open(checkpoint, 'a+');
  const whole = done.map((batch) => `${JSON.stringify(batch)}\n`).join('');
  await file.truncate(Buffer.byteLength(whole));
  process.stdout.write('ready\n');
  let after = done.at(-1)?.batch ?? 0;
  for (let step = done.length; ; ) {
    const request = { after, waitSeconds: WAIT_SECONDS, ...(namesVersions ? { policyVersion: `step-${step}` } : {}) };
    const replies = await Promise.all(clients.map((client) => client.nextBatch(stream, request)));
    const reply = sameBatch(replies, after);
    if (reply === undefined && replies.some((one) => one.done)) break;
    if (reply === undefined) continue;
    const { batch, groups } = reply;
    const trained = groups.map(({ row_index: row, group_id, results }) => ({
      row,
      group_id,
      sessions: ((results ?? []) as SessionResult[]).map(({ session_id }) => session_id).sort(),
    }));
    await file.appendFile(`${JSON.stringify({ batch, groups: trained })}\n`);
    await file.datasync();
    step += 1;
    after = batch ?? after;
  }
  await file.close();
  for (const client of clients) await client.close();
}

/**
 * Returns the batch that the servers returned; `undefined` when none of them returned a batch. Throws an Error when they returned different
 * batches.
 */
function sameBatch(replies: readonly BatchReply[], after: number): BatchReply | undefined {
  const full = replies.filter(({ batch }) => batch !== null);
  const texts = new Set(full.map(({ batch, groups }) => JSON.stringify([batch, groups.map((one) => one.group_id)])));
  if (texts.size > 1)
    throw new Error(`two servers returned different batches after ${after}: ${[...texts].join(' and ')}`);
  return full[0];
}

const [, , urls, stream, checkpoint, versions] = process.argv;
if (
  urls !== undefined &&
  stream !== undefined &&
  checkpoint !== undefined &&
  process.argv[1]?.endsWith('trainer-process.js')
) {
  await train(urls.split(','), stream, checkpoint, versions === 'versions');
}
