import type { SessionRow } from '../../src/store/rows.ts';
import type { MemoryState } from './memory-store/state.ts';
import type { Plan } from './plan.ts';
import type { Timeline } from './timeline.ts';

/** Maximum number of that two stored times may differ without a violation, ms: the times are rounded to integers. */
const ROUNDING_MS = 1;
/**
 * Time after which a server surely applies the current load of the trainers, ms: it reads the load once a second. Only after this time does
 * a violated share or limit count.
 */
const LOAD_REFRESH_MS = 1_200;
/**
 * Maximum number of sessions that other trainers may be leased, once `LOAD_REFRESH_MS` has passed, while a trainer without any leased
 * session waits.
 */
const MAX_PASSED_OVER = 4;

/**
 * Describes a trainer that waits without any leased session: since which virtual time, and how many sessions were leased to other trainers
 * after it had waited for `LOAD_REFRESH_MS`.
 */
type Starvation = { readonly sinceMs: number; passedOver: number };

/**
 * Checks every lease that a server grants: whether the session may be leased to the node, in its order of priority, and fairly among the
 * trainers.
 */
export class ClaimRules {
  private readonly timeline: Timeline;
  private readonly state: MemoryState;
  private readonly plan: Plan;
  private readonly starving = new Map<string, Starvation>();
  /** Virtual time since which a trainer has had too many uncollected results, by the trainer's name. Other trainers are absent. */
  private readonly heldBackSinceMs = new Map<string, number>();
  /** Id of the process that was registered for the node when a session was leased, by `session/epoch`. */
  private readonly owners = new Map<string, string>();

  constructor(timeline: Timeline, state: MemoryState, plan: Plan) {
    this.timeline = timeline;
    this.state = state;
    this.plan = plan;
  }

  /**
   * Returns the id of the node process to which a server granted the lease of a session with this epoch; `undefined` when no server granted
   * such a lease.
   */
  ownerOf(sessionId: string, epoch: number): string | undefined {
    return this.owners.get(`${sessionId}/${epoch}`);
  }

  /** Checks the lease of a session, given its row before and after the lease was granted. Reports each violation to the timeline. */
  checkClaim(before: SessionRow, after: SessionRow): void {
    const id = after.session_id;
    const node = this.state.nodes.get(after.node_id ?? '');
    if (node === undefined) this.fail('claims', `${id} was leased to ${after.node_id}, which is not registered`);
    else this.owners.set(`${id}/${after.epoch}`, node.instance);
    if (node?.draining === 1) this.fail('draining', `${id} was leased to ${after.node_id}, which is draining`);
    const nowMs = (after.lease_expires_ms ?? 0) - (this.plan.server.lease_seconds ?? 0) * 1000;
    for (const { now_ms: storedMs } of this.state.serviceTime.values()) {
      if (nowMs + ROUNDING_MS < storedMs)
        this.fail('service time', `${id} was leased at ${nowMs}, although ${storedMs} is stored`);
    }
    if (nowMs + ROUNDING_MS < before.not_before_ms) {
      this.fail('backoff', `${id} was leased ${(before.not_before_ms - nowMs).toFixed(0)} ms too early`);
    }
    const task = this.state.tasks.get(after.task_id);
    if (task?.status !== 'running') this.fail('claims', `${id} was leased although its task is ${task?.status}`);
    for (const other of this.state.sessions.values()) {
      if (other.trainer !== before.trainer || other.priority <= before.priority) continue;
      if (isDue(other, nowMs, after.node_id)) {
        this.fail('priority', `${id} was leased before ${other.session_id}, which has a higher priority`);
      }
    }
    this.checkBackpressure(after);
    this.checkFairness(after, nowMs);
  }

  /** Recomputes which trainers have too many uncollected results and must get no sessions. Must be called with every commit. */
  updateHeldBack(): void {
    const limit = this.plan.server.max_uncollected_results;
    if (limit === undefined) return;
    const uncollected = new Map<string, number>();
    for (const { collected, trainer, task_id: taskId } of this.state.results.values()) {
      const task = this.state.tasks.get(taskId);
      // Until a task with a callback ends, its results do not count as uncollected: the callback at the end will deliver them.
      if (task !== undefined && task.callback_url !== null && task.ended_ms === null) continue;
      if (collected === 0) uncollected.set(trainer, (uncollected.get(trainer) ?? 0) + 1);
    }
    for (const { name } of this.plan.trainers) {
      if ((uncollected.get(name) ?? 0) < limit) this.heldBackSinceMs.delete(name);
      else if (!this.heldBackSinceMs.has(name)) this.heldBackSinceMs.set(name, this.timeline.nowMs);
    }
  }

  /** Reports a violation when a session is leased to a trainer that has too many uncollected results. */
  private checkBackpressure({ session_id: id, trainer }: SessionRow): void {
    const sinceMs = this.heldBackSinceMs.get(trainer);
    // With injected faults a server may read the load of the trainers later than after `LOAD_REFRESH_MS`, so only runs without faults are
    // checked.
    if (!this.plan.isFaultless || sinceMs === undefined || this.timeline.nowMs - sinceMs < LOAD_REFRESH_MS) return;
    this.fail('back-pressure', `${id} was leased although ${trainer} has too many uncollected results`);
  }

  /**
   * Reports a violation when other trainers are leased more than `MAX_PASSED_OVER` sessions while a trainer without any leased session
   * waits.
   */
  private checkFairness({ trainer, node_id }: SessionRow, nowMs: number): void {
    this.starving.delete(trainer);
    const busy = new Set<string>();
    const waiting = new Set<string>();
    for (const row of this.state.sessions.values()) {
      if (row.lease_expires_ms !== null) busy.add(row.trainer);
      else if (isDue(row, nowMs, node_id)) waiting.add(row.trainer);
    }
    // A trainer with too many uncollected results rightly gets no session, so its waiting time starts from zero afterwards.
    for (const name of [...this.starving.keys()]) {
      if (busy.has(name) || !waiting.has(name) || this.heldBackSinceMs.has(name)) this.starving.delete(name);
    }
    for (const name of waiting) {
      if (busy.has(name) || this.heldBackSinceMs.has(name)) continue;
      const starvation = this.starving.get(name) ?? { sinceMs: this.timeline.nowMs, passedOver: 0 };
      this.starving.set(name, starvation);
      if (this.timeline.nowMs - starvation.sinceMs < LOAD_REFRESH_MS) continue;
      starvation.passedOver++;
      if (starvation.passedOver > MAX_PASSED_OVER) {
        this.fail('fairness', `${name} waits without a leased session while ${trainer} gets one after the other`);
      }
    }
  }

  private fail(invariant: string, message: string): void {
    this.timeline.reportViolation(invariant, message);
  }
}

/** Whether a session may be leased to a node at `nowMs`: it is queued, its backoff is over, and it does not avoid this node. */
function isDue(row: SessionRow, nowMs: number, nodeId: string | null): boolean {
  const avoids = row.avoid_node === nodeId && row.avoid_until_ms > nowMs;
  return row.status === 'QUEUED' && !avoids && row.not_before_ms <= nowMs;
}
