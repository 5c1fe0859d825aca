import type { SessionRow } from '#server/store/rows';
import type { MemoryState } from './memory-store/state.ts';
import type { Plan } from './plan.ts';
import type { Timeline } from './timeline.ts';

/** Maximum difference in ms between two stored times that is not reported as a violation. The store rounds times to whole milliseconds. */
const ROUNDING_MS = 1;
/**
 * Maximum age in ms of what a server knows about the load of the trainers (their leased sessions and uncollected results), which it reads
 * once a second. A lease granted within this time after the load has changed is not reported as unfair or as over a limit.
 */
const LOAD_REFRESH_MS = 1_200;
/**
 * Maximum number of sessions that may be leased to other trainers while one trainer waits without any leased session. Leases in the first
 * `LOAD_REFRESH_MS` of the wait are not counted.
 */
const MAX_PASSED_OVER = 4;

/**
 * Describes a trainer that waits without any leased session. `sinceMs` is the virtual time at which the wait began. `passedOver` is the
 * number of sessions that were leased to other trainers after the first `LOAD_REFRESH_MS` of the wait.
 */
type Starvation = { readonly sinceMs: number; passedOver: number };

/**
 * Checks every lease that a server grants. The session may be leased to this node, no session with a higher priority had to be leased first,
 * and the trainers get fair shares.
 */
export class ClaimRules {
  private readonly timeline: Timeline;
  private readonly state: MemoryState;
  private readonly plan: Plan;
  private readonly starving = new Map<string, Starvation>();
  /**
   * For each trainer with too many uncollected results (results that it has not read yet), by name: the virtual time in ms since which it
   * has had too many.
   */
  private readonly heldBackSinceMs = new Map<string, number>();
  /** Id of the process that was registered for the node when a session was leased to the node. The key is `<session id>/<lease epoch>`. */
  private readonly owners = new Map<string, string>();

  constructor(timeline: Timeline, state: MemoryState, plan: Plan) {
    this.timeline = timeline;
    this.state = state;
    this.plan = plan;
  }

  /**
   * Returns the id of the node process that was granted the lease with this epoch of a session; `undefined` when no server granted this
   * lease.
   */
  ownerOf(sessionId: string, epoch: number): string | undefined {
    return this.owners.get(`${sessionId}/${epoch}`);
  }

  /**
   * Checks the lease of a session, given the session's row before and after the lease was granted. Reports each violation to `Timeline`.
   */
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
    // The queue is ordered by priority, so only its beginning can have sessions with a higher priority.
    for (const other of this.state.queue.of(before.trainer)) {
      if (other.priority <= before.priority) break;
      if (isDue(other, nowMs, after.node_id)) {
        this.fail('priority', `${id} was leased before ${other.session_id}, which has a higher priority`);
      }
    }
    this.checkBackpressure(after);
    this.checkFairness(after, nowMs);
  }

  /** Recomputes which trainers have too many uncollected results and must therefore get no sessions. To be called after every commit. */
  updateHeldBack(): void {
    const limit = this.plan.server.max_uncollected_results;
    if (limit === undefined) return;
    const uncollected = new Map<string, number>();
    for (const { collected, trainer, task_id: taskId } of this.state.results.values()) {
      const task = this.state.tasks.get(taskId);
      // Results of a task with a callback count as uncollected only after the task has ended, because the callback at its end delivers
      // them.
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
    // Only runs without injected faults are checked. With faults, a server may read the load of the trainers later than `LOAD_REFRESH_MS`.
    if (!this.plan.isFaultless || sinceMs === undefined || this.timeline.nowMs - sinceMs < LOAD_REFRESH_MS) return;
    this.fail('back-pressure', `${id} was leased although ${trainer} has too many uncollected results`);
  }

  /**
   * Reports a violation when more than `MAX_PASSED_OVER` sessions are leased to other trainers while one trainer waits without any leased
   * session.
   */
  private checkFairness({ trainer, node_id }: SessionRow, nowMs: number): void {
    this.starving.delete(trainer);
    const { leasedByTrainer, queue } = this.state;
    const busy = new Set(leasedByTrainer.values());
    const waiting = new Set(
      [...queue.values()].filter((name) => queue.of(name).some((row) => isDue(row, nowMs, node_id))),
    );
    // Ends the recorded wait of a trainer that has a leased session, has nothing to lease, or has too many uncollected results and
    // therefore must get no session.
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

/**
 * Whether a session may be leased to a node at the time `nowMs`. The session must be queued, its retry delay must have passed, and its
 * previous attempt must not have failed recently on this node.
 */
function isDue(row: SessionRow, nowMs: number, nodeId: string | null): boolean {
  const avoids = row.avoid_node === nodeId && row.avoid_until_ms > nowMs;
  return row.status === 'QUEUED' && !avoids && row.not_before_ms <= nowMs;
}
