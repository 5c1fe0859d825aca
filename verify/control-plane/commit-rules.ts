import { OUTCOMES } from '../../src/core/outcomes.ts';
import { isTerminal } from '../../src/core/session-state.ts';
import type { SessionSummary, TaskRequest } from '../../src/schema/index.ts';
import type { CallbackRow, DeliveryRow, NodeRow, ResultRow, SessionRow, TaskRow } from '../../src/store/rows.ts';
import { ClaimRules } from './claim-rules.ts';
import type { History } from './history.ts';
import type { MemoryState, RowChange } from './memory-store/state.ts';
import type { Plan } from './plan.ts';
import type { Timeline } from './timeline.ts';

type Change<Row> = { readonly before: Row | undefined; readonly after: Row | undefined };

/** What must hold for every transaction that is committed. */
export class CommitRules {
  /** Results ever committed, by cursor: what was removed since was there. */
  readonly results = new Map<number, ResultRow>();
  /** Tasks that are kept no longer. */
  readonly removed = new Set<string>();
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
    for (const change of of<ResultRow>('results').values()) this.result(change);
    this.claims.look();
    const touched = new Set<string>();
    for (const change of of<SessionRow>('sessions').values()) {
      this.session(change, deliveries);
      if (change.after !== undefined && isTerminal(change.after.status)) touched.add(change.after.task_id);
    }
    for (const [taskId, change] of of<TaskRow>('tasks')) {
      this.task(change);
      touched.add(taskId);
    }
    for (const change of of<NodeRow>('nodes').values()) this.node(change);
    for (const taskId of touched) this.counts(taskId);
    for (const change of deliveries) this.delivery(change);
    for (const change of of<CallbackRow>('callbacks').values()) this.callback(change);
    for (const { before, after } of of<{ now_ms: number }>('service_time').values()) {
      if (before !== undefined && after !== undefined && after.now_ms < before.now_ms) {
        this.fail('service time', `goes back from ${before.now_ms} to ${after.now_ms}`);
      }
    }
  }

  private session({ before, after }: Change<SessionRow>, deliveries: readonly Change<DeliveryRow>[]): void {
    if (after === undefined) return;
    const id = after.session_id;
    if (after.lease_expires_ms !== null && after.node_id === null) this.fail('leases', `${id} is leased to nobody`);
    if (before === undefined) return;
    this.note(before, after);
    if (after.epoch < before.epoch) this.fail('epochs', `${id} goes back from ${before.epoch} to ${after.epoch}`);
    if (isTerminal(before.status)) {
      this.ended(before, after);
      return;
    }
    if (before.status === 'QUEUED' && after.status === 'LEASED') this.claims.claimed(before, after);
    if (before.lease_expires_ms !== null && after.status === 'QUEUED') {
      if (after.epoch === before.epoch) this.fail('epochs', `${id} went back to the queue under the same epoch`);
      if (after.lease_expires_ms !== null) this.fail('leases', `${id} is queued and leased`);
      this.requeued(before, after, deliveries);
    }
    if (isTerminal(after.status)) this.ends(before, after, deliveries);
  }

  private note(before: SessionRow, after: SessionRow): void {
    if (before.status === after.status && before.epoch === after.epoch) return;
    const where = after.node_id === null ? '' : ` on ${after.node_id}`;
    this.timeline.note('store', `${after.session_id}/${after.epoch} ${before.status} -> ${after.status}${where}`);
  }

  /** A session that has ended never changes, but for what is remembered of telling its node. */
  private ended(before: SessionRow, after: SessionRow): void {
    for (const field of ['status', 'summary', 'attempt', 'epoch', 'unusable'] as const) {
      if (before[field] === after[field]) continue;
      this.fail(
        'one end',
        `${field} of ${after.session_id} changed after its end: ${before[field]} to ${after[field]}`,
      );
    }
    if (after.lease_expires_ms !== null) this.fail('leases', `${after.session_id} has ended and is leased`);
  }

  private requeued(before: SessionRow, after: SessionRow, deliveries: readonly Change<DeliveryRow>[]): void {
    if (after.attempt > before.max_attempts && after.max_attempts === before.max_attempts) {
      this.fail('attempts', `${after.session_id} gets attempt ${after.attempt} of ${before.max_attempts}`);
    }
    const delivered = deliveries.find(({ after: row }) => row?.session_id === after.session_id)?.after;
    if (delivered === undefined) {
      // In a calm world no node is silent, and none hangs up on its leases.
      if (this.plan.calm) this.fail('leases', `${after.session_id} was taken from ${before.node_id} without need`);
      return;
    }
    const summary = JSON.parse(delivered.summary) as SessionSummary;
    if (after.attempt === before.attempt) this.fail('attempts', `a failed try of ${after.session_id} was not counted`);
    if (summary.error?.code === 'not_ready') return;
    const { retry_backoff_seconds: base = 0, retry_backoff_max_seconds: max = 0 } = this.plan.server;
    const leastMs = Math.min(max, base) * 1000;
    if (after.not_before_ms - after.queued_since_ms < leastMs / 2) {
      this.fail('backoff', `${after.session_id} is tried again at once after ${summary.outcome}`);
    }
  }

  private ends(before: SessionRow, after: SessionRow, deliveries: readonly Change<DeliveryRow>[]): void {
    const id = after.session_id;
    if (after.summary === null || this.state.results.get(id) === undefined) {
      this.fail('one result', `${id} ended without a result`);
      return;
    }
    const summary = JSON.parse(after.summary) as SessionSummary;
    if (OUTCOMES[summary.outcome].status !== after.status) {
      this.fail('one end', `${id} is ${after.status} with outcome ${summary.outcome}`);
    }
    if (OUTCOMES[summary.outcome].retried && summary.reward !== null) {
      this.fail('no false zero', `${id} ended as ${summary.outcome} with reward ${summary.reward}`);
    }
    const useless = summary.policy.use !== 'train' || summary.trainable_tokens === 0;
    if (useless && after.unusable === null) this.fail('usable', `${id} counts as usable with ${summary.outcome}`);
    const told = summary.outcome === 'cancelled' || summary.outcome === 'infra_error';
    const delivered = deliveries.find(({ after: row }) => row?.session_id === id)?.after;
    if (delivered === undefined && !told)
      this.fail('one result', `${id} ended as ${summary.outcome} without a delivery`);
    if (delivered !== undefined && (delivered.epoch !== before.epoch || before.lease_expires_ms === null)) {
      this.fail('fencing', `${id} took a result of epoch ${delivered.epoch} in epoch ${before.epoch}`);
    }
    if (delivered !== undefined && summary.node_id !== before.node_id && summary.node_id !== null) {
      this.fail('fencing', `${id} of ${before.node_id} took a result of ${summary.node_id}`);
    }
    const task = this.state.tasks.get(after.task_id);
    if (task?.status === 'cancelled' && after.status !== 'CANCELLED') {
      this.fail('cancelled', `${id} of a cancelled task ended as ${after.status}`);
    }
  }

  private result({ before, after }: Change<ResultRow>): void {
    if (after === undefined) {
      if (before?.collected === 0) this.fail('retention', `${before.session_id} was removed before it was collected`);
      return;
    }
    if (before !== undefined) {
      if (before.cursor !== after.cursor) this.fail('cursors', `the cursor of ${after.session_id} changed`);
      if (before.collected === 0 && after.collected === 1) this.collected(after);
      if (before.collected > after.collected) this.fail('collected', `${after.session_id} is uncollected again`);
      return;
    }
    if (after.cursor <= this.newestCursor) {
      this.fail('cursors', `${after.session_id} got cursor ${after.cursor} after ${this.newestCursor}`);
    }
    this.newestCursor = Math.max(this.newestCursor, after.cursor);
    this.results.set(after.cursor, after);
  }

  /** A result counts as collected when its trainer has it, and not before. */
  private collected({ cursor, task_id: taskId, session_id: id }: ResultRow): void {
    for (const read of this.history.read.values()) if (read.has(cursor)) return;
    if (this.history.callbacks.get(taskId)?.some(({ acknowledged }) => acknowledged) === true) return;
    this.fail('collected', `cursor ${cursor}, ${id}, counts as collected, but nobody has it`);
  }

  /** The sessions of the older process go back to the queue in the commit that lets the newer one in. */
  private node({ before, after }: Change<NodeRow>): void {
    if (before === undefined || after === undefined || before.instance === after.instance) return;
    for (const row of this.state.sessions.values()) {
      if (row.node_id !== after.node_id || row.lease_expires_ms === null) continue;
      this.fail('takeover', `${row.session_id} is still leased to ${before.instance}`);
    }
  }

  private delivery({ before, after }: Change<DeliveryRow>): void {
    if (before === undefined || after === undefined) return;
    if (before.kind !== 'partial') this.fail('one result', `a delivery of ${after.session_id} was replaced`);
  }

  private callback({ before, after }: Change<CallbackRow>): void {
    if (after === undefined) return;
    const task = this.state.tasks.get(after.task_id);
    if (before === undefined && task?.completed_sessions !== task?.total_sessions) {
      this.fail('callbacks', `task ${after.task_id} is called back before it has ended`);
    }
    if (before?.delivered_at != null && after.delivered_at === null) {
      this.fail('callbacks', `the callback of ${after.task_id} is undelivered again`);
    }
    if (before?.delivered_at === null && after.delivered_at !== null) {
      const received = this.history.callbacks.get(after.task_id) ?? [];
      if (!received.some(({ acknowledged }) => acknowledged)) {
        this.fail('callbacks', `that of ${after.task_id} counts as delivered, but nobody acknowledged it`);
      }
    }
  }

  private task({ before, after }: Change<TaskRow>): void {
    if (after === undefined) {
      if (before === undefined) return;
      this.removed.add(before.task_id);
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

  /** What a task says of its sessions is what they are. */
  private counts(taskId: string): void {
    const task = this.state.tasks.get(taskId);
    if (task === undefined) return;
    const sessions = this.state.sessions.where((row) => row.task_id === taskId);
    const ended = sessions.filter((row) => isTerminal(row.status));
    const submitted = JSON.parse(task.request) as TaskRequest;
    const say = (what: string, said: number, is: number): void => {
      if (said !== is) this.fail('conservation', `task ${taskId} says ${what} ${said}, but it is ${is}`);
    };
    say('total_sessions', task.total_sessions, sessions.length);
    say('completed_sessions', task.completed_sessions, ended.length);
    const usable = ended.filter((row) => row.unusable === null).length;
    say('usable_sessions', task.usable_sessions, usable);
    const enough = submitted.early_stop_min_usable_sessions ?? Number.POSITIVE_INFINITY;
    if (task.status === 'running' && usable >= enough && ended.length < sessions.length) {
      this.fail('early stop', `task ${taskId} goes on with ${usable} usable samples of ${enough}`);
    }
    const unusable = ended.length - usable;
    if (task.refilled > unusable)
      this.fail('refill', `task ${taskId} was refilled ${task.refilled} times for ${unusable}`);
    say('num_samples and refilled', submitted.num_samples + task.refilled, sessions.length);
    if (task.refilled > submitted.refill) this.fail('refill', `task ${taskId} was refilled ${task.refilled} times`);
    if (new Set(sessions.map((row) => row.sample_index)).size !== sessions.length) {
      this.fail('refill', `two samples of task ${taskId} have one index`);
    }
    if ((task.ended_ms !== null) !== (ended.length === sessions.length)) {
      this.fail(
        'conservation',
        `task ${taskId} has ended: ${task.ended_ms}; ${ended.length} of ${sessions.length} sessions have`,
      );
    }
  }

  private fail(invariant: string, message: string): void {
    this.timeline.violate(invariant, message);
  }
}
