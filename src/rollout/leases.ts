import { isoNow } from '../core/clock.ts';
import type { Lease } from '../schema/index.ts';
import type { SessionRow } from '../store/index.ts';
import { change, type RolloutContext } from './context.ts';
import { giveUp, requeue } from './endings.ts';
import { knownNode } from './nodes.ts';

/** Leases taken back by one transaction: keeps a mass expiry from blocking everything else. */
const SWEEP_BATCH = 200;

/** A lease without its task, and the task as the JSON text that is stored. */
export type Claimed = { readonly lease: Omit<Lease, 'task'>; readonly taskJson: string };

/** Gives a node up to `slots` queued sessions: higher priority first, then first come. Throws `not_found` for an unknown node. */
export async function claimSessions(context: RolloutContext, nodeId: string, slots: number): Promise<Claimed[]> {
  const { lease_seconds: leaseSeconds } = context.config;
  return change(context, async (tables, effects) => {
    const node = await knownNode(tables, nodeId);
    if (node.draining === 1) return [];
    const nowMs = context.time.nowMs();
    const rows = await tables.sessions.claim({
      limit: slots,
      nodeId,
      trainer: 'default',
      order: 'fifo',
      nowMs,
      leaseExpiresMs: nowMs + leaseSeconds * 1000,
      updatedAt: isoNow(context.clock),
    });
    const requests = new Map<string, string>();
    const claimed: Claimed[] = [];
    for (const row of rows) {
      const taskJson = requests.get(row.task_id) ?? (await tables.tasks.get(row.task_id))?.request;
      if (taskJson === undefined) throw new Error(`a session names task ${row.task_id}, which is not stored`);
      requests.set(row.task_id, taskJson);
      claimed.push({ lease: leaseOf(row, leaseSeconds, nowMs), taskJson });
      effects.sessionChanged(row);
    }
    return claimed;
  });
}

function leaseOf(row: SessionRow, leaseSeconds: number, nowMs: number): Omit<Lease, 'task'> {
  return {
    session_id: row.session_id,
    task_id: row.task_id,
    sample_index: row.sample_index,
    attempt: row.attempt,
    epoch: row.epoch,
    lease_seconds: leaseSeconds,
    queued_ms: Math.max(0, nowMs - row.queued_since_ms),
  };
}

/** The node hung up before it got its leases: nothing ran, so the sessions go back without using up an attempt. */
export async function returnLeases(context: RolloutContext, claimed: readonly Claimed[]): Promise<void> {
  await change(context, async (tables, effects) => {
    for (const { lease } of claimed) {
      const row = await tables.sessions.lock(lease.session_id);
      if (row?.status !== 'LEASED' || row.epoch !== lease.epoch) continue;
      await requeue(context, tables, effects, row, { attempt: row.attempt, delayMs: 0 });
    }
  });
}

/** Takes back the leases that ran out. The session is tried again, or ends as `infra_error` when its attempts are used up. */
export async function sweepExpired(context: RolloutContext): Promise<void> {
  await context.time.persist();
  for (let found = SWEEP_BATCH; found === SWEEP_BATCH; ) {
    found = await change(context, async (tables, effects) => {
      const rows = await tables.sessions.lockExpired(context.time.nowMs(), SWEEP_BATCH);
      for (const row of rows) {
        if (row.node_id !== null) effects.topics.add(`node:${row.node_id}`);
        if (row.attempt < row.max_attempts) {
          await requeue(context, tables, effects, row, { attempt: row.attempt + 1, delayMs: 0 });
        } else {
          await giveUp(context, tables, effects, row, 'infra_error', {
            code: 'peer_unreachable',
            message: `node ${row.node_id} was silent for ${context.config.lease_seconds} s in attempt ${row.attempt}, the last one`,
            stage: row.status,
            details: { node_id: row.node_id, attempts: row.attempt },
          });
        }
      }
      return rows.length;
    });
  }
  await context.store.transaction((tables) => tables.tombstones.removeExpired(context.time.nowMs()));
}

/** Delay before an attempt: doubles with each, up to the configured maximum. */
export function retryDelayMs(context: RolloutContext, nextAttempt: number): number {
  const { retry_backoff_seconds: base, retry_backoff_max_seconds: max } = context.config;
  return Math.min(max, base * 2 ** (nextAttempt - 2)) * 1000;
}
