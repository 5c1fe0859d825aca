import { isTerminal } from '@floe-rl/core/protocol';
import type { SessionSummary } from '@floe-rl/core/schema';
import type { SimCluster } from './cluster.ts';
import type { ReadResult } from './history.ts';
import type { MemoryState } from './memory-store/state.ts';
import type { SimGateway } from './sim-gateway.ts';
import type { SimTrainer } from './sim-trainer.ts';

/**
 * Maximum time in ms that a server may need to end an overdue task after its sweep (a periodic check of the deadlines) has found the task.
 */
const DEADLINE_GRACE_MS = 500;

/** Contents of a simulated trajectory: the session, epoch and node process that produced it. `SimSessionRun` writes it. */
type Origin = { readonly session: string; readonly epoch: number; readonly instance: string; readonly turns: number };

/**
 * Returns a description of the first thing that has not ended, such as an open task or a running sandbox; `null` when everything has ended
 * and the simulation can stop.
 */
export function describeUnfinished(
  cluster: SimCluster,
  trainers: Iterable<SimTrainer>,
  gateways: readonly SimGateway[],
): string | null {
  const { state } = cluster.database.rows;
  if (!cluster.faultsEnded) return 'faults are still injected';
  for (const trainer of trainers) {
    if (trainer.openTasks > 0) return `${trainer.openTasks} tasks of ${trainer.plan.name} are not accepted`;
    const newest = newestCursor(state, trainer);
    if (trainer.cursor < newest) return `${trainer.plan.name} has read up to cursor ${trainer.cursor} of ${newest}`;
  }
  for (const task of state.tasks.values()) if (task.ended_ms === null) return `task ${task.task_id} is open`;
  for (const callback of state.callbacks.values()) {
    if (callback.delivered_at === null) return `the callback of ${callback.task_id} is not delivered`;
  }
  const [sandbox] = cluster.history.sandboxes.list();
  if (sandbox !== undefined) {
    return `the sandbox of ${sandbox.sessionId}/${sandbox.epoch} still runs on ${sandbox.process.name}`;
  }
  const busy = gateways.find((gateway) => gateway.liveSessions > 0);
  if (busy !== undefined) return `${busy.host.name} has ${busy.liveSessions} sessions`;
  return null;
}

/**
 * Compares what trainers and nodes received with the rows and blobs that are stored, and reports each difference as a violation. To be
 * called after all sessions have ended.
 */
export function checkFinalState(cluster: SimCluster, trainers: Iterable<SimTrainer>): void {
  checkSubmissions(cluster);
  checkSessions(cluster);
  for (const trainer of trainers) checkReads(cluster, trainer);
  checkCallbacks(cluster, trainers);
  checkDeadlines(cluster);
}

function checkSubmissions({ history, database, timeline, rules }: SimCluster): void {
  const { state } = database.rows;
  for (const [taskId, { sessionIds, trainer }] of history.submissions) {
    const task = state.tasks.get(taskId);
    if (task === undefined) {
      if (rules.removedTasks.has(taskId)) continue;
      timeline.reportViolation('nothing is lost', `task ${taskId} of ${trainer} was acknowledged, but does not exist`);
      continue;
    }
    for (const id of sessionIds) {
      const row = state.sessions.get(id);
      if (row === undefined)
        timeline.reportViolation('nothing is lost', `session ${id} was acknowledged, but does not exist`);
      else if (!isTerminal(row.status)) timeline.reportViolation('one end', `session ${id} is ${row.status}`);
    }
  }
  const keys = new Set<string>();
  for (const { idempotency_key: key, task_id: id } of state.tasks.values()) {
    if (key !== null && keys.has(key))
      timeline.reportViolation('one submit', `the key ${key} created more than one task, among them ${id}`);
    if (key !== null) keys.add(key);
  }
}

function checkSessions(cluster: SimCluster): void {
  const { database, timeline, history, blobFiles } = cluster;
  const { state } = database.rows;
  for (const row of state.sessions.values()) {
    const id = row.session_id;
    if (row.lease_expires_ms !== null) timeline.reportViolation('leases', `${id} is ${row.status} and still leased`);
    if (row.summary === null) continue;
    const summary = JSON.parse(row.summary) as SessionSummary;
    if (history.cancelled.has(id) && row.status !== 'CANCELLED') {
      timeline.reportViolation('cancelled', `${id} was cancelled and is ${row.status}`);
    }
    for (let epoch = 1; epoch <= row.epoch; epoch++) {
      const key = `${id}/${epoch}`;
      if (history.acknowledgedPartials.has(key) && state.deliveries.get(key) === undefined) {
        timeline.reportViolation('partials', `the partial result of ${key} was acknowledged, but is not stored`);
      }
    }
    const facts = state.facts.get(id);
    if (facts?.outcome !== summary.outcome || facts.reward !== summary.reward) {
      timeline.reportViolation('facts', `${id} is ${summary.outcome}, and its facts are ${JSON.stringify(facts)}`);
    }
    const ref = state.results.get(id)?.trajectory_ref ?? null;
    if (ref === null) continue;
    const blob = blobFiles.blobs.get(ref);
    if (blob === undefined) {
      timeline.reportViolation('blobs', `the trajectory of ${id} is not stored`);
      continue;
    }
    const origin = JSON.parse(blob.bytes.toString()) as Origin;
    if (origin.session !== id) timeline.reportViolation('no mix-up', `${id} has the trajectory of ${origin.session}`);
    if (origin.epoch !== summary.epoch) {
      timeline.reportViolation('fencing', `${id}/${summary.epoch} has the trajectory of epoch ${origin.epoch}`);
    }
    const holder = history.holder(id, origin.epoch);
    if (holder !== origin.instance) {
      const message = `${id}/${origin.epoch} was leased to ${holder}, but its result was produced by ${origin.instance}`;
      timeline.reportViolation('fencing', message);
    }
  }
}

/** Checks that a trainer has read all results that its plan lets it read, and that they equal the stored results. */
function checkReads({ history, rules, timeline, database }: SimCluster, trainer: SimTrainer): void {
  const { plan } = trainer;
  const seen = history.read.get(plan.name) ?? new Map<number, ReadResult>();
  for (const [cursor, result] of rules.results) {
    // Skips results of tasks that the server removed. Delivery by callback counts as collection, so the server may remove a task before a
    // slow trainer has read its results.
    if (!trainer.readsResultsOf(result.trainer) || rules.removedTasks.has(result.task_id)) continue;
    const read = seen.get(cursor);
    if (read === undefined) {
      timeline.reportViolation('nothing is skipped', `${plan.name} never read cursor ${cursor}, ${result.session_id}`);
      continue;
    }
    const row = database.rows.state.sessions.get(result.session_id);
    const summary = row?.summary == null ? null : (JSON.parse(row.summary) as SessionSummary);
    if (summary !== null && (summary.outcome !== read.outcome || summary.epoch !== read.epoch)) {
      timeline.reportViolation(
        'stable results',
        `${plan.name} read another result of ${result.session_id} than the stored one`,
      );
    }
  }
  for (const cursor of seen.keys()) {
    if (!rules.results.has(cursor))
      timeline.reportViolation('cursors', `${plan.name} read cursor ${cursor}, which was never committed`);
  }
}

/**
 * In a run without faults, checks that each task ended in time: at most one sweep interval of the server plus `DEADLINE_GRACE_MS` after its
 * deadline.
 */
function checkDeadlines({ database, plan, timeline }: SimCluster): void {
  const graceMs = (plan.server.sweep_seconds ?? 0) * 1000 + DEADLINE_GRACE_MS;
  for (const { task_id: id, deadline_ms: deadlineMs, ended_ms: endedMs } of database.rows.state.tasks.values()) {
    if (plan.isFaultless && deadlineMs !== null && endedMs !== null && endedMs > deadlineMs + graceMs) {
      timeline.reportViolation(
        'deadlines',
        `task ${id} ended ${(endedMs - deadlineMs).toFixed(0)} ms after its deadline`,
      );
    }
  }
}

function checkCallbacks({ history, database, timeline, plan }: SimCluster, trainers: Iterable<SimTrainer>): void {
  const refusing = new Set(
    [...trainers].filter((trainer) => trainer.plan.callbackRefusalRate > 0).map((trainer) => trainer.plan.name),
  );
  for (const task of database.rows.state.tasks.values()) {
    const received = history.callbacks.get(task.task_id) ?? [];
    if (task.callback_url === null) {
      if (received.length > 0)
        timeline.reportViolation('callbacks', `task ${task.task_id} got a callback that it did not request`);
      continue;
    }
    if (!received.some(({ acknowledged }) => acknowledged)) {
      timeline.reportViolation('callbacks', `the callback of task ${task.task_id} was never acknowledged`);
    }
    if (plan.isFaultless && !refusing.has(task.trainer) && received.length > 1) {
      timeline.reportViolation(
        'callbacks',
        `the callback of task ${task.task_id} was sent ${received.length} times without a fault`,
      );
    }
  }
}

/** Returns the highest cursor among the stored results that the trainer's plan lets it read; 0 when there is no such result. */
function newestCursor(state: MemoryState, trainer: SimTrainer): number {
  let newest = 0;
  for (const row of state.results.values())
    if (trainer.readsResultsOf(row.trainer)) newest = Math.max(newest, row.cursor);
  return newest;
}
