import type { SessionRow } from '../../src/store/rows.ts';
import type { World } from './world.ts';

/** A change reaches whoever waits for it within this time when nothing goes wrong, ms. Half of what looking again would take. */
const PROMPT_MS = 500;
/** Looked at so often, ms. */
const LOOK_MS = 100;

/** In a calm world, nobody waits for long: a change wakes those whom it concerns. */
export class Promptness {
  private readonly world: World;
  private readonly since = new Map<string, number>();

  constructor(world: World) {
    this.world = world;
  }

  start(): void {
    if (!this.world.plan.calm) return;
    this.look();
    this.world.timeline.after(LOOK_MS, () => this.start());
  }

  private look(): void {
    const { database, history, timeline } = this.world;
    const { sessions, callbacks } = database.rows.state;
    const waits = new Set<string>();
    for (const box of history.sandboxes.list()) {
      const row = sessions.get(box.sessionId);
      if (row?.status === 'CANCELLED') waits.add(`the end of the sandbox of ${box.sessionId}, which was cancelled`);
    }
    for (const row of callbacks.values()) {
      if (row.tries === 0 && row.delivered_at === null && !history.callbacks.has(row.task_id)) {
        waits.add(`the first callback of ${row.task_id}`);
      }
    }
    for (const row of sessions.values()) if (this.couldRun(row)) waits.add(`${row.session_id}, though a node is idle`);
    for (const what of this.since.keys()) if (!waits.has(what)) this.since.delete(what);
    for (const what of waits) {
      const sinceMs = this.since.get(what) ?? timeline.nowMs;
      this.since.set(what, sinceMs);
      if (timeline.nowMs - sinceMs > PROMPT_MS) {
        timeline.violate('promptness', `after ${PROMPT_MS} ms there is still to wait for ${what}`);
      }
    }
  }

  /** Whether a queued session waits although a registered node has nothing to do at all. */
  private couldRun(row: SessionRow): boolean {
    if (row.status !== 'QUEUED' || row.queued_since_ms < row.not_before_ms || row.attempt > 1) return false;
    if (this.world.plan.server.max_uncollected_results !== undefined) return false;
    const { nodes, sessions } = this.world.database.rows.state;
    const busy = new Set(sessions.where((other) => other.lease_expires_ms !== null).map((other) => other.node_id));
    const sandboxes = new Set(this.world.history.sandboxes.list().map((box) => box.node));
    for (const node of nodes.values()) if (!busy.has(node.node_id) && !sandboxes.has(node.node_id)) return true;
    return false;
  }
}
