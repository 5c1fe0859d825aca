import { isoNow } from '@floe-rl/core';
import { isTerminal } from '@floe-rl/core/protocol';
import type { Lease, NodeRegistration } from '@floe-rl/core/schema';
import type { SessionRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { memoryOf } from '../nodes/memory.ts';
import { ownNode } from '../nodes/nodes.ts';
import { cancelReason, cancelRows } from '../tasks/groups.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { requeueSession } from './retry.ts';

/** A leased session: the lease without its task, and the task as the JSON text in which it is stored. */
export type ClaimedSession = { readonly lease: Omit<Lease, 'task'>; readonly taskJson: string };

/** The sessions that a node gets. `isQueueEmpty` means that it got none because no queued session may be leased to any node now. */
export type Claim = { readonly claimed: readonly ClaimedSession[]; readonly isQueueEmpty: boolean };

type ClaimWithStrays = Claim & {
  /**
   * Claimed sessions whose task is no longer running. They were still in the queue, and are cancelled instead of being sent to the node.
   */
  readonly strays: readonly SessionRow[];
};

type Claimant = { readonly nodeId: string; readonly instance: string; readonly slots: number };

const NOTHING: ClaimWithStrays = { claimed: [], isQueueEmpty: false, strays: [] };

/**
 * Leases up to `slots` queued sessions to a node. The node never holds more sessions than its stages have places in total, nor more than fit
 * into its memory. The slots are divided fairly among the trainers. Sessions of the same trainer are leased by priority, and sessions of the
 * same priority in the configured order. Throws `not_found` for an unknown node, and `conflict` when another process has taken over the node
 * id.
 */
export async function claimSessions(context: RolloutContext, claimant: Claimant): Promise<Claim> {
  for (;;) {
    const { claimed, isQueueEmpty, strays } = await runTransaction(context, (transaction) =>
      claimOnce(transaction, claimant),
    );
    if (strays.length > 0) await cancelStrays(context, strays);
    if (claimed.length > 0 || strays.length === 0) return { claimed, isQueueEmpty };
  }
}

async function claimOnce(transaction: Transaction, { nodeId, instance, slots }: Claimant): Promise<ClaimWithStrays> {
  const { context, tables } = transaction;
  const node = await ownNode(tables, nodeId, instance);
  if (node.draining === 1) return NOTHING;
  const registration = JSON.parse(node.registration) as NodeRegistration;
  const held = await tables.sessions.heldBy(nodeId);
  const memory = memoryOf(registration, held);
  const free = capacityOf(registration) - held.count;
  if (free <= 0 || (memory !== null && memory.freeMb <= 0)) return NOTHING;
  const { lease_seconds: leaseSeconds } = context.config;
  const nowMs = await context.time.sharedNowMs(tables);
  const { rows, isQueueEmpty, isHeldBack, isOutOfMemory } = await context.scheduling.claim(tables, {
    nodeId,
    slots: Math.min(slots, free),
    memory,
    nowMs,
    leaseExpiresMs: nowMs + leaseSeconds * 1000,
    updatedAt: isoNow(context.clock),
  });
  if (isHeldBack) transaction.count('claims_held_back');
  if (isOutOfMemory) transaction.count('claims_out_of_memory');
  if (rows.length === 0) return { ...NOTHING, isQueueEmpty };
  // The queue is shorter now, so batch streams may start further groups.
  transaction.wake('batches');
  const tasks = await tables.tasks.getMany([...new Set(rows.map((row) => row.task_id))]);
  const running = new Map(tasks.flatMap((task) => (task.status === 'running' ? [[task.task_id, task.request]] : [])));
  const claimed: ClaimedSession[] = [];
  const strays: SessionRow[] = [];
  for (const row of rows) {
    const taskJson = running.get(row.task_id);
    if (taskJson === undefined) {
      strays.push(row);
      continue;
    }
    claimed.push({ lease: leaseOf(row, leaseSeconds, nowMs), taskJson });
    transaction.sessionChanged(row);
  }
  return { claimed, isQueueEmpty: false, strays };
}

/** Returns how many sessions all stages of a node can hold together. This limit applies even if the node reports more free slots. */
function capacityOf(node: NodeRegistration): number {
  return node.max_init_workers + node.ready_size + node.max_run_workers + node.max_postrun_workers;
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

/**
 * Cancels claimed sessions whose task is no longer running. This takes separate transactions: the claim has already locked the sessions,
 * and a task must be locked before its sessions.
 */
async function cancelStrays(context: RolloutContext, strays: readonly SessionRow[]): Promise<void> {
  for (const taskId of new Set(strays.map((row) => row.task_id))) {
    const ids = strays.filter((row) => row.task_id === taskId).map((row) => row.session_id);
    await runTransaction(context, async (transaction) => {
      const { tables } = transaction;
      const task = await tables.tasks.lock(taskId);
      if (task === undefined) throw new Error(`sessions name task ${taskId}, which is not stored`);
      const open = (await tables.sessions.lockMany(ids)).filter((row) => !isTerminal(row.status));
      await cancelRows(transaction, task, open, cancelReason(task));
    });
  }
}

/**
 * Puts sessions back into the queue when their leases could not be sent because the node had closed the connection. Nothing has run, so
 * the sessions keep their attempt number.
 */
export async function returnLeases(context: RolloutContext, claimed: readonly ClaimedSession[]): Promise<void> {
  const epochs = new Map(claimed.map(({ lease }) => [lease.session_id, lease.epoch]));
  await runTransaction(context, async (transaction) => {
    for (const row of await transaction.tables.sessions.lockMany([...epochs.keys()])) {
      if (row.status !== 'LEASED' || row.epoch !== epochs.get(row.session_id)) continue;
      await requeueSession(transaction, row, { attempt: row.attempt, delayMs: 0 });
    }
  });
}
