import type { SessionRow } from '../../src/store/rows.ts';
import type { MemoryState } from './memory-store/state.ts';
import type { Plan } from './plan.ts';
import type { Timeline } from './timeline.ts';

/** Fractions of a millisecond get lost on the way. */
const ROUNDING_MS = 1;
/** What trainers have is looked at once a second by each server, so shares and limits hold to within what happens meanwhile. */
const LOOK_MS = 1_200;
/** Sessions that others may get while a trainer that has none waits, beyond that second. */
const OTHERS_FIRST = 4;

/** Since when a trainer that has nothing under way has waited, and what others got since a while after that. */
type Hunger = { readonly sinceMs: number; overlooked: number };

/** What must hold when sessions are handed out. */
export class ClaimRules {
  private readonly timeline: Timeline;
  private readonly state: MemoryState;
  private readonly plan: Plan;
  private readonly hunger = new Map<string, Hunger>();
  /** Since when a trainer has had more uncollected results than it may. */
  private readonly full = new Map<string, number>();
  /** The process that was registered when a session was leased, by session and epoch. */
  private readonly registered = new Map<string, string>();

  constructor(timeline: Timeline, state: MemoryState, plan: Plan) {
    this.timeline = timeline;
    this.state = state;
    this.plan = plan;
  }

  /** The process that a lease may go to. */
  ownerOf(sessionId: string, epoch: number): string | undefined {
    return this.registered.get(`${sessionId}/${epoch}`);
  }

  claimed(before: SessionRow, after: SessionRow): void {
    const id = after.session_id;
    const node = this.state.nodes.get(after.node_id ?? '');
    if (node === undefined) this.fail('claims', `${id} went to ${after.node_id}, which is not registered`);
    else this.registered.set(`${id}/${after.epoch}`, node.instance);
    if (node?.draining === 1) this.fail('draining', `${id} went to ${after.node_id}, which is draining`);
    const nowMs = (after.lease_expires_ms ?? 0) - (this.plan.server.lease_seconds ?? 0) * 1000;
    for (const { now_ms: storedMs } of this.state.serviceTime.values()) {
      if (nowMs + ROUNDING_MS < storedMs) this.fail('service time', `${id} was leased at ${nowMs}, after ${storedMs}`);
    }
    if (nowMs + ROUNDING_MS < before.not_before_ms) {
      this.fail('backoff', `${id} was leased ${(before.not_before_ms - nowMs).toFixed(0)} ms too early`);
    }
    const task = this.state.tasks.get(after.task_id);
    if (task?.status !== 'running') this.fail('claims', `${id} was leased although its task is ${task?.status}`);
    for (const other of this.state.sessions.values()) {
      if (other.trainer !== before.trainer || other.priority <= before.priority) continue;
      if (isDue(other, nowMs, after.node_id)) {
        this.fail('priority', `${id} was leased before ${other.session_id}, which comes first`);
      }
    }
    this.backpressure(after);
    this.fairness(after, nowMs);
  }

  /** To be called with every commit. */
  look(): void {
    const most = this.plan.server.max_uncollected_results;
    if (most === undefined) return;
    const uncollected = new Map<string, number>();
    for (const { collected, trainer, task_id: taskId } of this.state.results.values()) {
      const task = this.state.tasks.get(taskId);
      // Results of a running task that its callback will bring are not the trainer's to collect yet.
      if (task !== undefined && task.callback_url !== null && task.ended_ms === null) continue;
      if (collected === 0) uncollected.set(trainer, (uncollected.get(trainer) ?? 0) + 1);
    }
    for (const { name } of this.plan.trainers) {
      if ((uncollected.get(name) ?? 0) < most) this.full.delete(name);
      else if (!this.full.has(name)) this.full.set(name, this.timeline.nowMs);
    }
  }

  /** A trainer that does not collect gets nothing more. */
  private backpressure({ session_id: id, trainer }: SessionRow): void {
    const sinceMs = this.full.get(trainer);
    // Only where nothing is slow can it be told that a server has had the time to look.
    if (!this.plan.calm || sinceMs === undefined || this.timeline.nowMs - sinceMs < LOOK_MS) return;
    this.fail('back-pressure', `${id} was leased although ${trainer} does not collect`);
  }

  /** A trainer that waits and has nothing is not passed over again and again. */
  private fairness({ trainer, node_id }: SessionRow, nowMs: number): void {
    this.hunger.delete(trainer);
    const busy = new Set<string>();
    const hungry = new Set<string>();
    for (const row of this.state.sessions.values()) {
      if (row.lease_expires_ms !== null) busy.add(row.trainer);
      else if (isDue(row, nowMs, node_id)) hungry.add(row.trainer);
    }
    // Who is held back goes hungry rightly, and for a moment longer, until a server has looked again.
    for (const name of [...this.hunger.keys()]) {
      if (busy.has(name) || !hungry.has(name) || this.full.has(name)) this.hunger.delete(name);
    }
    for (const name of hungry) {
      if (busy.has(name) || this.full.has(name)) continue;
      const hunger = this.hunger.get(name) ?? { sinceMs: this.timeline.nowMs, overlooked: 0 };
      this.hunger.set(name, hunger);
      if (this.timeline.nowMs - hunger.sinceMs < LOOK_MS) continue;
      hunger.overlooked++;
      if (hunger.overlooked > OTHERS_FIRST) {
        this.fail('fairness', `${name} waits with nothing under way while ${trainer} gets one session after the other`);
      }
    }
  }

  private fail(invariant: string, message: string): void {
    this.timeline.violate(invariant, message);
  }
}

function isDue(row: SessionRow, nowMs: number, nodeId: string | null): boolean {
  const avoids = row.avoid_node === nodeId && row.avoid_until_ms > nowMs;
  return row.status === 'QUEUED' && !avoids && row.not_before_ms <= nowMs;
}
