import { isTerminal, OUTCOMES } from '@floe-rl/core/protocol';
import type { SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { FactRow } from '#server/store/facts';
import type { CallbackRow, DeliveryRow, NodeRow, SessionRow, TaskRow } from '#server/store/rows';
import { ClaimRules } from './claim-rules.ts';
import type { History } from './history.ts';
import type { MemoryState, RowChange, StoredResult } from './memory-store/state.ts';
import type { Plan } from './plan.ts';
import type { Timeline } from './timeline.ts';

type Change<Row> = { readonly before: Row | undefined; readonly after: Row | undefined };

/** Checks the changes of every committed transaction against floe's invariants, such as: a session ends once, with one result. */
export class CommitRules {
  /** All results that were ever committed, by cursor. Results that floe removed from the database later stay in this map. */
  readonly results = new Map<number, StoredResult>();
  /** Ids of tasks that floe removed from the database after they had ended. */
  readonly removedTasks = new Set<string>();
  readonly claims: ClaimRules;
  private readonly timeline: Timeline;
  private readonly state: MemoryState;
  private readonly history: History;
  private readonly plan: Plan;
  private newestCursor = 0;

  constructor(timeline: Timeline, state: MemoryState, history: History, plan: Plan) {
    this.timeline = timeline;
    this.state = state;
    this.history = history;
    this.plan = plan;
    this.claims = new ClaimRules(timeline, state, plan);
  }

  /** Checks all rows that one transaction changed. Reports each violated invariant to `Timeline`. */
  check(changes: readonly RowChange[]): void {
    const tables = new Map<string, Map<string, Change<unknown>>>();
    for (const { table, key, before, after } of changes) {
      const rows = tables.get(table.name) ?? new Map<string, Change<unknown>>();
      tables.set(table.name, rows);
      const first = rows.get(key);
      rows.set(key, { before: first === undefined ? before : first.before, after });
    }
    const of = <Row>(name: string): Map<string, Change<Row>> =>
      (tables.get(name) ?? new Map()) as Map<string, Change<Row>>;
    const deliveries = [...of<DeliveryRow>('deliveries').values()];
    for (const change of of<StoredResult>('results').values()) this.checkResult(change);
    this.claims.updateHeldBack();
    const changedTasks = new Set<string>();
    for (const change of of<SessionRow>('sessions').values()) {
      this.checkSession(change, deliveries);
      if (change.after !== undefined && isTerminal(change.after.status)) changedTasks.add(change.after.task_id);
    }
    for (const [taskId, change] of of<TaskRow>('tasks')) {
      this.checkTask(change);
      changedTasks.add(taskId);
    }
    for (const change of of<NodeRow>('nodes').values()) this.checkNode(change);
    for (const taskId of changedTasks) this.checkCounters(taskId);
    for (const change of deliveries) this.checkDelivery(change);
    for (const change of of<CallbackRow>('callbacks').values()) this.checkCallback(change);
    for (const change of of<FactRow>('session_facts').values()) this.checkFacts(change);
    for (const { before, after } of of<{ now_ms: number }>('service_time').values()) {
      if (before !== undefined && after !== undefined && after.now_ms < before.now_ms) {
        this.fail('service time', `moved back from ${before.now_ms} to ${after.now_ms}`);
      }
    }
  }

  private checkSession({ before, after }: Change<SessionRow>, deliveries: readonly Change<DeliveryRow>[]): void {
    if (after === undefined) return;
    const id = after.session_id;
    if (after.lease_expires_ms !== null && after.node_id === null)
      this.fail('leases', `${id} is leased without a node`);
    if (before === undefined) return;
    this.recordTransition(before, after);
    if (after.epoch < before.epoch)
      this.fail('epochs', `the epoch of ${id} moved back from ${before.epoch} to ${after.epoch}`);
    if (isTerminal(before.status)) {
      this.checkEnded(before, after);
      return;
    }
    if (before.status === 'QUEUED' && after.status === 'LEASED') this.claims.checkClaim(before, after);
    if (before.lease_expires_ms !== null && after.status === 'QUEUED') {
      if (after.epoch === before.epoch) this.fail('epochs', `${id} returned to the queue with the same epoch`);
      if (after.lease_expires_ms !== null) this.fail('leases', `${id} is queued and still leased`);
      this.checkRequeue(before, after, deliveries);
    }
    if (isTerminal(after.status)) this.checkEnd(before, after, deliveries);
  }

  private recordTransition(before: SessionRow, after: SessionRow): void {
    if (before.status === after.status && before.epoch === after.epoch) return;
    const node = after.node_id === null ? '' : ` on ${after.node_id}`;
    this.timeline.record('store', `${after.session_id}/${after.epoch} ${before.status} -> ${after.status}${node}`);
  }

  /** Reports a violation when an ended session has a lease, or when its status, result, attempt number or epoch changes after its end. */
  private checkEnded(before: SessionRow, after: SessionRow): void {
    for (const field of ['status', 'summary', 'attempt', 'epoch', 'unusable'] as const) {
      if (before[field] === after[field]) continue;
      this.fail(
        'one end',
        `${field} of ${after.session_id} changed after its end: ${before[field]} to ${after[field]}`,
      );
    }
    if (after.lease_expires_ms !== null) this.fail('leases', `${after.session_id} has ended and is leased`);
  }

  private checkRequeue(before: SessionRow, after: SessionRow, deliveries: readonly Change<DeliveryRow>[]): void {
    if (after.attempt > before.max_attempts && after.max_attempts === before.max_attempts) {
      this.fail('attempts', `${after.session_id} gets attempt ${after.attempt} of ${before.max_attempts}`);
    }
    const delivered = deliveries.find(({ after: row }) => row?.session_id === after.session_id)?.after;
    if (delivered === undefined) {
      // In a run without faults every node renews its leases in time, so a session that returns to the queue because its lease expired is a
      // violation.
      if (this.plan.isFaultless)
        this.fail('leases', `${after.session_id} was taken from ${before.node_id} without a fault`);
      return;
    }
    if (delivered.summary === null) {
      this.fail('one result', `the delivery after which ${after.session_id} is retried has no summary`);
      return;
    }
    const summary = JSON.parse(delivered.summary) as SessionSummary;
    if (after.attempt === before.attempt)
      this.fail('attempts', `a failed attempt of ${after.session_id} was not counted`);
    if (summary.error?.code === 'not_ready') return;
    const { retry_backoff_seconds: base = 0, retry_backoff_max_seconds: max = 0 } = this.plan.server;
    const minDelayMs = (Math.min(max, base) * 1000) / 2;
    if (after.not_before_ms - after.queued_since_ms < minDelayMs) {
      this.fail('backoff', `${after.session_id} is retried without a delay after ${summary.outcome}`);
    }
  }

  private checkEnd(before: SessionRow, after: SessionRow, deliveries: readonly Change<DeliveryRow>[]): void {
    const id = after.session_id;
    if (after.summary === null || this.state.results.get(id) === undefined) {
      this.fail('one result', `${id} ended without a result`);
      return;
    }
    const summary = JSON.parse(after.summary) as SessionSummary;
    this.compareFacts(after, summary);
    if (OUTCOMES[summary.outcome].status !== after.status) {
      this.fail('one end', `${id} is ${after.status} with outcome ${summary.outcome}`);
    }
    if (OUTCOMES[summary.outcome].retried && summary.reward !== null) {
      this.fail('no false zero', `${id} ended as ${summary.outcome} with reward ${summary.reward}`);
    }
    const unusable = summary.policy.use !== 'train' || summary.trainable_tokens === 0;
    if (unusable && after.unusable === null) this.fail('usable', `${id} counts as usable with ${summary.outcome}`);
    const needsNoDelivery = summary.outcome === 'cancelled' || summary.outcome === 'infra_error';
    const delivered = deliveries.find(({ after: row }) => row?.session_id === id)?.after;
    if (delivered === undefined && !needsNoDelivery)
      this.fail('one result', `${id} ended as ${summary.outcome} without a delivery`);
    if (delivered !== undefined && (delivered.epoch !== before.epoch || before.lease_expires_ms === null)) {
      this.fail('fencing', `${id} in epoch ${before.epoch} accepted a result of epoch ${delivered.epoch}`);
    }
    if (delivered !== undefined && summary.node_id !== before.node_id && summary.node_id !== null) {
      this.fail('fencing', `${id} on ${before.node_id} accepted a result of ${summary.node_id}`);
    }
    const task = this.state.tasks.get(after.task_id);
    if (task?.status === 'cancelled' && after.status !== 'CANCELLED') {
      this.fail('cancelled', `${id} of a cancelled task ended as ${after.status}`);
    }
  }

  /** Reports a violation unless the transaction that ended a session also added facts that equal its result. */
  private compareFacts(row: SessionRow, summary: SessionSummary): void {
    const id = row.session_id;
    const facts = this.state.facts.get(id);
    if (facts === undefined) {
      this.fail('facts', `${id} ended without facts`);
      return;
    }
    const expected = {
      task_id: row.task_id,
      trainer: row.trainer,
      outcome: summary.outcome,
      unusable: row.unusable,
      reward: summary.reward,
      attempt: summary.attempt,
      turns: row.turns,
      sampled_tokens: row.sampled_tokens,
      trained_tokens: summary.trainable_tokens,
    };
    for (const [name, value] of Object.entries(expected) as [keyof typeof expected, string | number | null][]) {
      if (facts[name] !== value) this.fail('facts', `${name} of the facts of ${id} is ${facts[name]}, not ${value}`);
    }
  }

  /** Checks that facts belong to an ended session, never change, and are removed only together with their session. */
  private checkFacts({ before, after }: Change<FactRow>): void {
    const id = (after ?? before)?.session_id ?? '';
    const session = this.state.sessions.get(id);
    if (after === undefined && session !== undefined) this.fail('facts', `the facts of ${id} were removed before it`);
    if (after === undefined) return;
    if (before !== undefined) this.fail('facts', `the facts of ${id} changed`);
    if (session === undefined || !isTerminal(session.status)) this.fail('facts', `${id} has facts and has not ended`);
  }

  private checkResult({ before, after }: Change<StoredResult>): void {
    if (after === undefined) {
      if (before?.collected === 0) this.fail('retention', `${before.session_id} was removed before it was collected`);
      return;
    }
    if (before !== undefined) {
      if (before.cursor !== after.cursor) this.fail('cursors', `the cursor of ${after.session_id} changed`);
      if (before.collected === 0 && after.collected === 1) this.checkCollected(after);
      if (before.collected > after.collected)
        this.fail('collected', `${after.session_id} is no longer marked as collected`);
      return;
    }
    if (after.cursor <= this.newestCursor) {
      this.fail('cursors', `${after.session_id} got cursor ${after.cursor} after ${this.newestCursor}`);
    }
    this.newestCursor = Math.max(this.newestCursor, after.cursor);
    this.results.set(after.cursor, after);
  }

  /** Reports a violation when a result is marked as collected before a trainer has read it or received it in a callback. */
  private checkCollected({ cursor, task_id: taskId, session_id: id }: StoredResult): void {
    for (const read of this.history.read.values()) if (read.has(cursor)) return;
    if (this.history.callbacks.get(taskId)?.some(({ acknowledged }) => acknowledged) === true) return;
    this.fail('collected', `cursor ${cursor}, ${id}, is marked as collected, but no trainer has received it`);
  }

  /** Checks that the transaction which registers a newer process of a node also requeues the sessions of the older process. */
  private checkNode({ before, after }: Change<NodeRow>): void {
    if (before === undefined || after === undefined || before.instance === after.instance) return;
    for (const row of this.state.held.of(after.node_id)) {
      this.fail('takeover', `${row.session_id} is still leased to ${before.instance}`);
    }
  }

  private checkDelivery({ before, after }: Change<DeliveryRow>): void {
    if (before === undefined || after === undefined) return;
    if (before.kind !== 'partial') this.fail('one result', `a delivery of ${after.session_id} was replaced`);
  }

  private checkCallback({ before, after }: Change<CallbackRow>): void {
    if (after === undefined) return;
    const task = this.state.tasks.get(after.task_id);
    if (before === undefined && task?.completed_sessions !== task?.total_sessions) {
      this.fail('callbacks', `the callback of ${after.task_id} is scheduled before the task has ended`);
    }
    if (before?.delivered_at != null && after.delivered_at === null) {
      this.fail('callbacks', `the callback of ${after.task_id} is no longer marked as delivered`);
    }
    if (before?.delivered_at === null && after.delivered_at !== null) {
      const received = this.history.callbacks.get(after.task_id) ?? [];
      if (!received.some(({ acknowledged }) => acknowledged)) {
        this.fail('callbacks', `the callback of ${after.task_id} is marked as delivered, but was not acknowledged`);
      }
    }
  }

  private checkTask({ before, after }: Change<TaskRow>): void {
    if (after === undefined) {
      if (before === undefined) return;
      this.removedTasks.add(before.task_id);
      if (before.ended_ms === null) this.fail('retention', `open task ${before.task_id} was removed`);
      return;
    }
    if (before === undefined) return;
    const stopped = before.early_stopped === 1 && after.status === 'completed';
    if (before.status !== 'running' && before.status !== after.status && !stopped) {
      this.fail('one end', `task ${after.task_id} moved from ${before.status} to ${after.status}`);
    }
    if (before.ended_ms !== null && before.ended_ms !== after.ended_ms) {
      this.fail('one end', `task ${after.task_id} ended twice`);
    }
  }

  /** Reports a violation when the stored counters of a task differ from the number of its sessions in each state. */
  private checkCounters(taskId: string): void {
    const task = this.state.tasks.get(taskId);
    if (task === undefined) return;
    const sessions = this.state.sessionsByTask.of(taskId);
    const ended = sessions.filter((row) => isTerminal(row.status));
    const submitted = JSON.parse(task.request) as TaskRequest;
    const compare = (name: string, stored: number, actual: number): void => {
      if (stored === actual) return;
      this.fail('conservation', `${name} of task ${taskId} is ${stored}, but should be ${actual}`);
    };
    compare('total_sessions', task.total_sessions, sessions.length);
    compare('completed_sessions', task.completed_sessions, ended.length);
    const usable = ended.filter((row) => row.unusable === null).length;
    compare('usable_sessions', task.usable_sessions, usable);
    const target = submitted.early_stop_min_usable_sessions ?? Number.POSITIVE_INFINITY;
    if (task.status === 'running' && usable >= target && ended.length < sessions.length) {
      this.fail('early stop', `task ${taskId} continues with ${usable} usable samples of ${target}`);
    }
    const unusable = ended.length - usable;
    if (task.refilled > unusable)
      this.fail('refill', `task ${taskId} was refilled ${task.refilled} times for ${unusable} unusable samples`);
    compare('num_samples + refilled', submitted.num_samples + task.refilled, sessions.length);
    if (task.refilled > submitted.refill) this.fail('refill', `task ${taskId} was refilled ${task.refilled} times`);
    if (new Set(sessions.map((row) => row.sample_index)).size !== sessions.length) {
      this.fail('refill', `two samples of task ${taskId} have the same index`);
    }
    if ((task.ended_ms !== null) !== (ended.length === sessions.length)) {
      this.fail(
        'conservation',
        `ended_ms of task ${taskId} is ${task.ended_ms}, and ${ended.length} of ${sessions.length} sessions have ended`,
      );
    }
  }

  private fail(invariant: string, message: string): void {
    this.timeline.reportViolation(invariant, message);
  }
}
