import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, parseAs, VirtualClock } from '@floe-rl/core';
import { encodeEnvelope, sessionSummary } from '@floe-rl/core/protocol';
import { batchStreamRequestSchema, type Lease, nodeRegistrationSchema, type TaskRequest } from '@floe-rl/core/schema';
import { rolloutConfigSchema } from '@floe-rl/server';
import { RowGenerators } from '#server/rollout/batches/generator';
import { nextBatch } from '#server/rollout/batches/hand-out';
import { replenishAll } from '#server/rollout/batches/replenish';
import { createStream, readStream } from '#server/rollout/batches/streams';
import { createControlPlane } from '#server/rollout/control-plane';
import { registerNode } from '#server/rollout/nodes/registration';
import { claimSessions } from '#server/rollout/sessions/claim';
import { deliverResult } from '#server/rollout/sessions/deliver';
import { DirectoryBlobStore, SqliteStore } from '#server/store/index';
import type { Plan } from './batch-by-batch.ts';
import type { Sample } from './workload.ts';

export type StreamRun = {
  /** Virtual time until the last batch was handed out, in ms. */
  readonly totalMs: number;
  /** Staleness of each handed group in policy steps. */
  readonly staleness: readonly number[];
  /** Rows of the handed groups. */
  readonly rows: readonly number[];
  readonly startedGroups: number;
  readonly expired: number;
  /** Time of all ended sessions together, in ms. */
  readonly workedMs: number;
};

type Running = { readonly endMs: number; readonly lease: Omit<Lease, 'task'>; readonly sample: Sample };

const NODE = 'node-1';

/**
 * Runs floe's own batch streams, scheduling and store on a virtual clock, with a trainer whose steps take no time. Sessions are simulated:
 * each takes the time and gets the reward that its sample has.
 */
export async function runStream(
  groupOf: (index: number) => readonly Sample[],
  samplesPerGroup: number,
  { workers, batchGroups, batches }: Plan,
  maxStaleness: number,
): Promise<StreamRun> {
  const directory = await mkdtemp(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'floe-dapo-'));
  const clock = new VirtualClock();
  const store = SqliteStore.open(join(directory, 'floe.db'));
  const blobs = await DirectoryBlobStore.open(join(directory, 'blobs'), clock);
  const config = parseAs(rolloutConfigSchema, {}, 'config');
  const plane = await createControlPlane(config, { store, blobs, clock, validateTask: () => {} });
  const { context } = plane;
  const generators = new RowGenerators(context);
  try {
    await registerNode(
      context,
      parseAs(
        nodeRegistrationSchema,
        {
          node_id: NODE,
          instance: 'i',
          // A node holds at most as many sessions as its stages have places together.
          max_init_workers: 1,
          ready_size: 0,
          max_run_workers: workers - 2,
          max_postrun_workers: 1,
        },
        'node',
      ),
    );
    await createStream(
      context,
      parseAs(
        batchStreamRequestSchema,
        {
          batch_id: 'dapo',
          source: { kind: 'endless' },
          task: {
            instruction: 'row {{row.index}}',
            num_samples: samplesPerGroup,
            agent: { harness: 'shell', custom_shell: 'true' },
            evaluator: { strategy: 'session_completed' },
          },
          batch_size: batchGroups,
          max_staleness: maxStaleness,
        },
        'stream',
      ),
    );
    const running: Running[] = [];
    const staleness: number[] = [];
    const rows: number[] = [];
    let workedMs = 0;
    for (let batch = 0; ; ) {
      const disconnected = new AbortController().signal;
      const request = { batchId: 'dapo', size: undefined, policyVersion: `step-${batch + 1}`, after: batch };
      const { batch: handed, groups, stream } = await nextBatch(context, { ...request, waitMs: 0, disconnected });
      if (handed !== null) {
        for (const group of groups) {
          staleness.push((stream.policy_step ?? 0) - (group.policy_step ?? 0));
          rows.push(group.row_index);
        }
        batch = handed;
        if (batch === batches) break;
        continue;
      }
      for (;;) {
        await replenishAll(context, generators);
        const { claimed } = await claimSessions(context, { nodeId: NODE, instance: 'i', slots: workers });
        if (claimed.length === 0) break;
        for (const { lease, taskJson } of claimed) {
          const { metadata } = JSON.parse(taskJson) as TaskRequest;
          const sample = groupOf((metadata.batch as { row_index: number }).row_index)[lease.sample_index];
          if (sample === undefined) throw new Error(`no sample ${lease.sample_index}`);
          insert(running, { endMs: clock.monotonicMs() + sample.ms, lease, sample });
        }
      }
      const first = running.shift();
      if (first === undefined) throw new Error('no session runs, but the batch is not complete');
      clock.advance(Math.max(0, first.endMs - clock.monotonicMs()));
      if (await deliver(first)) workedMs += first.sample.ms;
    }
    const view = await readStream(context, 'dapo');
    return {
      totalMs: clock.monotonicMs(),
      staleness,
      rows,
      startedGroups: Object.values(view.progress.rejected).reduce((sum, count) => sum + count, 0) + rows.length,
      expired: view.progress.expired + view.progress.restarted,
      workedMs,
    };
  } finally {
    plane.close();
    await generators.close();
    await plane.finish();
    await store.close();
    await rm(directory, { recursive: true, force: true });
  }

  /** Delivers the result of a session. Returns false when its group was started again meanwhile, so that the session was cancelled. */
  async function deliver({ lease, sample }: Running): Promise<boolean> {
    const summary = sessionSummary(lease, 'completed', {
      reward: sample.isSolved ? 1 : 0,
      trace_count: 1,
      trainable_tokens: 1,
      completion_count: 1,
    });
    try {
      await deliverResult(context, NODE, encodeEnvelope({ header: summary, parts: new Map() }));
      return true;
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code === 'cancelled') return false;
      throw thrown;
    }
  }
}

/** Inserts a session into the list, which is ordered by end. */
function insert(running: Running[], session: Running): void {
  let low = 0;
  let high = running.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((running[middle]?.endMs ?? 0) <= session.endMs) low = middle + 1;
    else high = middle;
  }
  running.splice(low, 0, session);
}
