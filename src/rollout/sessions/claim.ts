import { isoNow } from '../../core/clock.ts';
import { isTerminal } from '../../core/session-state.ts';
import type { Lease, NodeRegistration, SessionError } from '../../schema/index.ts';
import type { SessionRow, StoreTables } from '../../store/index.ts';
import { change, type Effects, type RolloutContext } from '../context.ts';
import { ownNode } from '../nodes/nodes.ts';
import { cancelReason, cancelRows } from '../tasks/groups.ts';
import { loseAttempt, requeue } from './end.ts';

/** Leases taken back by one transaction: keeps a mass expiry from blocking everything else. */
const SWEEP_BATCH = 200;

/** A lease without its task, and the task as the JSON text that is stored. */
export type Claimed = { readonly lease: Omit<Lease, 'task'>; readonly taskJson: string };

/** `full`: the node holds all that it may, so it got nothing. */
export type Claim = { readonly claimed: readonly Claimed[]; readonly full: boolean };

type Attempted = Claim & {
  /** Sessions of tasks that are no longer running. They were queued still, and no node may get them. */
  readonly strays: readonly SessionRow[];
};

const NOTHING: Attempted = { claimed: [], full: false, strays: [] };

/**
 * Gives a node up to `slots` queued sessions, never more than it can have in all its stages together. Trainers share fairly;
 * within a trainer higher priority goes first, then the configured order. Throws `not_found` for an unknown node, and
 * `conflict` when another process holds its id.
 */
export async function claimSessions(
  context: RolloutContext,
  nodeId: string,
  instance: string,
  slots: number,
): Promise<Claim> {
  for (;;) {
    const { claimed, full, strays } = await change(context, (tables, effects) =>
      claimOnce(context, tables, effects, { nodeId, instance, slots }),
    );
    if (strays.length > 0) await cancelStrays(context, strays);
    if (claimed.length > 0 || strays.length === 0) return { claimed, full };
  }
}

async function claimOnce(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  { nodeId, instance, slots }: { nodeId: string; instance: string; slots: number },
): Promise<Attempted> {
  const node = await ownNode(tables, nodeId, instance);
  if (node.draining === 1) return NOTHING;
  const registration = JSON.parse(node.registration) as NodeRegistration;
  const room = capacityOf(registration) - (await tables.sessions.countHeldBy(nodeId));
  if (room <= 0) return { ...NOTHING, full: true };
  const { lease_seconds: leaseSeconds } = context.config;
  const nowMs = await context.time.sharedNowMs(tables);
  const { rows, heldBack } = await context.scheduling.take(tables, {
    nodeId,
    slots: Math.min(slots, room),
    nowMs,
    leaseExpiresMs: nowMs + leaseSeconds * 1000,
    updatedAt: isoNow(context.clock),
  });
  if (heldBack) effects.counted.push('claims_held_back');
  if (rows.length === 0) return NOTHING;
  const tasks = await tables.tasks.getMany([...new Set(rows.map((row) => row.task_id))]);
  const running = new Map(tasks.flatMap((task) => (task.status === 'running' ? [[task.task_id, task.request]] : [])));
  const claimed: Claimed[] = [];
  const strays: SessionRow[] = [];
  for (const row of rows) {
    const taskJson = running.get(row.task_id);
    if (taskJson === undefined) {
      strays.push(row);
      continue;
    }
    claimed.push({ lease: leaseOf(row, leaseSeconds, nowMs), taskJson });
    effects.sessionChanged(row);
  }
  return { claimed, full: false, strays };
}

/** Sessions that a node can have in its stages at a time; what it says of its free slots does not count. */
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

/** In transactions of their own: a claim has locked the sessions already, and tasks are locked before those. */
async function cancelStrays(context: RolloutContext, strays: readonly SessionRow[]): Promise<void> {
  for (const taskId of new Set(strays.map((row) => row.task_id))) {
    const ids = strays.filter((row) => row.task_id === taskId).map((row) => row.session_id);
    await change(context, async (tables, effects) => {
      const task = await tables.tasks.lock(taskId);
      if (task === undefined) throw new Error(`a session names task ${taskId}, which is not stored`);
      const open = (await tables.sessions.lockMany(ids)).filter((row) => !isTerminal(row.status));
      await cancelRows(context, tables, effects, task, open, cancelReason(task));
    });
  }
}

/** The node hung up before it got its leases: nothing ran, so the sessions go back without using up an attempt. */
export async function returnLeases(context: RolloutContext, claimed: readonly Claimed[]): Promise<void> {
  const epochs = new Map(claimed.map(({ lease }) => [lease.session_id, lease.epoch]));
  await change(context, async (tables, effects) => {
    for (const row of await tables.sessions.lockMany([...epochs.keys()])) {
      if (row.status !== 'LEASED' || row.epoch !== epochs.get(row.session_id)) continue;
      await requeue(context, tables, effects, row, { attempt: row.attempt, delayMs: 0 });
    }
  });
}

/**
 * Takes back the leases that ran out. The session is tried again, or ends as `infra_error` when its attempts are used up.
 * Several servers may do so at a time: who comes second finds nothing to take back.
 */
export async function sweepExpired(context: RolloutContext): Promise<void> {
  // A server that lags behind learns what time it is before it judges a lease.
  await context.time.persist();
  for (let found = SWEEP_BATCH; found === SWEEP_BATCH; ) {
    const expired = await context.store.read((tables) =>
      tables.sessions.lockExpired(context.time.nowMs(), SWEEP_BATCH),
    );
    found = expired.length;
    if (found > 0) await change(context, (tables, effects) => takeBackExpired(context, tables, effects, expired));
  }
  await context.store.transaction((tables) => tables.tombstones.removeExpired(context.time.nowMs()));
}

async function takeBackExpired(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  found: readonly SessionRow[],
): Promise<void> {
  const nowMs = context.time.nowMs();
  await lockTasks(tables, found);
  for (const row of await tables.sessions.lockMany(found.map((one) => one.session_id))) {
    if (row.lease_expires_ms === null || row.lease_expires_ms > nowMs) continue;
    if (row.node_id !== null) effects.topics.add(`node:${row.node_id}`);
    effects.counted.push('leases_expired');
    const silence = `node ${row.node_id} was silent for ${context.config.lease_seconds} s`;
    await loseAttempt(context, tables, effects, row, lostTo(row, silence));
  }
}

/**
 * Takes back everything that a node id holds, at once: its process is another one now. `known` are the sessions that it held
 * just before, so that their tasks can be locked first.
 */
export async function takeBackFrom(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  nodeId: string,
  known: readonly SessionRow[],
): Promise<void> {
  await lockTasks(tables, known);
  for (const row of await tables.sessions.lockHeldBy(nodeId)) {
    await loseAttempt(context, tables, effects, row, lostTo(row, `another process took over node ${nodeId}`));
  }
}

/** By id, as everybody does. */
async function lockTasks(tables: StoreTables, rows: readonly SessionRow[]): Promise<void> {
  for (const taskId of [...new Set(rows.map((row) => row.task_id))].sort()) await tables.tasks.lock(taskId);
}

/** What a session ends with when this was its last attempt. */
function lostTo(row: SessionRow, reason: string): SessionError {
  return {
    code: 'peer_unreachable',
    message: `${reason} in attempt ${row.attempt}, the last one`,
    stage: row.status,
    details: { node_id: row.node_id, attempts: row.attempt },
  };
}
