import { isTerminal } from '../../src/core/session-state.ts';
import type { SessionResult, SessionSummary } from '../../src/schema/index.ts';
import type { MemoryState } from './memory-store/state.ts';
import type { Trainer } from './trainer.ts';
import type { Parts } from './troubles.ts';
import type { World } from './world.ts';

/** For the transactions of a sweep that finds something, ms. */
const DEADLINE_GRACE_MS = 500;

type Made = { readonly session: string; readonly epoch: number; readonly instance: string; readonly turns: number };

/** What is still to be done, in words; empty: everything has come to its end. */
export function unfinished(world: World, trainers: Iterable<Trainer>, { gateways }: Parts): string {
  const { state } = world.database.rows;
  if (!world.quiet) return 'trouble';
  for (const trainer of trainers) {
    if (trainer.open > 0) return `${trainer.open} tasks of ${trainer.plan.name} are not accepted`;
    const newest = newestCursor(state, trainer);
    if (trainer.cursor < newest) return `${trainer.plan.name} has read to ${trainer.cursor} of ${newest}`;
  }
  for (const task of state.tasks.values()) if (task.ended_ms === null) return `task ${task.task_id} is open`;
  for (const callback of state.callbacks.values()) {
    if (callback.delivered_at === null) return `the callback of ${callback.task_id} is not delivered`;
  }
  if (world.history.sandboxes.count > 0) {
    return `sandboxes run: ${world.history.sandboxes.list().map((box) => `${box.sessionId}/${box.epoch} on ${box.life.name}`)}`;
  }
  const busy = gateways.find((gateway) => gateway.liveSessions > 0);
  if (busy !== undefined) return `${busy.host.name} has ${busy.liveSessions} sessions`;
  return '';
}

/** Holds what the outside was told against what is stored, once everything has come to its end. */
export function checkEnd(world: World, trainers: Iterable<Trainer>): void {
  submits(world);
  sessions(world);
  for (const trainer of trainers) reading(world, trainer);
  callbacks(world, trainers);
  deadlines(world);
}

function submits({ history, database, timeline, rules }: World): void {
  const { state } = database.rows;
  for (const [taskId, { sessionIds, trainer }] of history.submitted) {
    const task = state.tasks.get(taskId);
    if (task === undefined) {
      if (rules.removed.has(taskId)) continue;
      timeline.violate('nothing is lost', `task ${taskId} of ${trainer} was acknowledged and is gone`);
      continue;
    }
    for (const id of sessionIds) {
      const row = state.sessions.get(id);
      if (row === undefined) timeline.violate('nothing is lost', `session ${id} was acknowledged and is gone`);
      else if (!isTerminal(row.status)) timeline.violate('one end', `session ${id} is ${row.status}`);
    }
  }
  const keys = new Set<string>();
  for (const { idempotency_key: key, task_id: id } of state.tasks.values()) {
    if (key !== null && keys.has(key)) timeline.violate('one submit', `${key} made more than one task: ${id}`);
    if (key !== null) keys.add(key);
  }
}

function sessions(world: World): void {
  const { database, timeline, history, shelf } = world;
  const { state } = database.rows;
  for (const row of state.sessions.values()) {
    const id = row.session_id;
    if (row.lease_expires_ms !== null) timeline.violate('leases', `${id} is ${row.status} and leased`);
    if (row.summary === null) continue;
    const summary = JSON.parse(row.summary) as SessionSummary;
    if (history.cancelled.has(id) && row.status !== 'CANCELLED') {
      timeline.violate('cancelled', `${id} was cancelled and is ${row.status}`);
    }
    for (let epoch = 1; epoch <= row.epoch; epoch++) {
      const kept = `${id}/${epoch}`;
      if (history.keptPartials.has(kept) && state.deliveries.get(kept) === undefined) {
        timeline.violate('partials', `the remains of ${kept} were acknowledged and are gone`);
      }
    }
    const ref = state.results.get(id)?.trajectory_ref ?? null;
    if (ref === null) continue;
    const blob = shelf.blobs.get(ref);
    if (blob === undefined) {
      timeline.violate('blobs', `the trajectory of ${id} is gone`);
      continue;
    }
    const made = JSON.parse(blob.bytes.toString()) as Made;
    if (made.session !== id) timeline.violate('no mix-up', `${id} has the trajectory of ${made.session}`);
    if (made.epoch !== summary.epoch)
      timeline.violate('fencing', `${id}/${summary.epoch} has the trajectory of ${made.epoch}`);
    const holder = history.holder(id, made.epoch);
    if (holder !== made.instance) {
      timeline.violate('fencing', `${id}/${made.epoch} was leased to ${holder} and made by ${made.instance}`);
    }
  }
}

/** A reader that goes from cursor to cursor has seen every result, with the contents that are stored. */
function reading({ history, rules, timeline, database }: World, trainer: Trainer): void {
  const { plan } = trainer;
  const seen = history.read.get(plan.name) ?? new Map<number, SessionResult>();
  for (const [cursor, result] of rules.results) {
    // What a trainer got by callback counts as collected, and may be gone before a slow reader of it comes by.
    if (!trainer.readsOf(result.trainer) || rules.removed.has(result.task_id)) continue;
    const read = seen.get(cursor);
    if (read === undefined) {
      timeline.violate('nothing is skipped', `${plan.name} never read cursor ${cursor}, ${result.session_id}`);
      continue;
    }
    const row = database.rows.state.sessions.get(result.session_id);
    const summary = row?.summary == null ? null : (JSON.parse(row.summary) as SessionSummary);
    if (summary !== null && (summary.outcome !== read.outcome || summary.epoch !== read.epoch)) {
      timeline.violate('stable results', `${plan.name} read another result of ${result.session_id} than is stored`);
    }
  }
  for (const cursor of seen.keys()) {
    if (!rules.results.has(cursor))
      timeline.violate('cursors', `${plan.name} read cursor ${cursor}, which was never committed`);
  }
}

/** In a calm world a deadline is kept to within a sweep. */
function deadlines({ database, plan, timeline }: World): void {
  const graceMs = (plan.server.sweep_seconds ?? 0) * 1000 + DEADLINE_GRACE_MS;
  for (const { task_id: id, deadline_ms: deadlineMs, ended_ms: endedMs } of database.rows.state.tasks.values()) {
    if (plan.calm && deadlineMs !== null && endedMs !== null && endedMs > deadlineMs + graceMs) {
      timeline.violate('deadlines', `task ${id} ended ${(endedMs - deadlineMs).toFixed(0)} ms after its deadline`);
    }
  }
}

function callbacks({ history, database, timeline, plan }: World, trainers: Iterable<Trainer>): void {
  const refusing = new Set([...trainers].filter((one) => one.plan.refuseCallback > 0).map((one) => one.plan.name));
  for (const task of database.rows.state.tasks.values()) {
    const received = history.callbacks.get(task.task_id) ?? [];
    if (task.callback_url === null) {
      if (received.length > 0) timeline.violate('callbacks', `task ${task.task_id} asked for none`);
      continue;
    }
    if (!received.some(({ acknowledged }) => acknowledged)) {
      timeline.violate('callbacks', `that of task ${task.task_id} was never acknowledged`);
    }
    if (plan.calm && !refusing.has(task.trainer) && received.length > 1) {
      timeline.violate('callbacks', `task ${task.task_id} was called back ${received.length} times without need`);
    }
  }
}

/** Of the results that a trainer reads. */
function newestCursor(state: MemoryState, trainer: Trainer): number {
  let newest = 0;
  for (const row of state.results.values()) if (trainer.readsOf(row.trainer)) newest = Math.max(newest, row.cursor);
  return newest;
}
