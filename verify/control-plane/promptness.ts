import type { SessionRow } from '#server/store/rows';
import type { SimCluster } from './cluster.ts';

/**
 * Maximum time in ms that a process may wait for a change of the stored state in a run without faults. Servers and nodes also poll about
 * once a second, so a longer wait usually means that the notification of the change was missing.
 */
const PROMPT_MS = 500;
const POLL_INTERVAL_MS = 100;

/**
 * Reports a violation when a process waits longer than `PROMPT_MS` for a change in a cluster without faults. Every change must notify the
 * processes that wait for it.
 */
export class PromptnessCheck {
  private readonly cluster: SimCluster;
  /** The changes that processes wait for: the key describes the change, the value is the virtual time in ms at which the wait began. */
  private readonly waitingSinceMs = new Map<string, number>();

  constructor(cluster: SimCluster) {
    this.cluster = cluster;
  }

  start(): void {
    if (!this.cluster.plan.isFaultless) return;
    this.check();
    this.cluster.timeline.after(POLL_INTERVAL_MS, () => this.start());
  }

  private check(): void {
    const { database, history, timeline } = this.cluster;
    const { sessions, callbacks } = database.rows.state;
    const waits = new Set<string>();
    for (const sandbox of history.sandboxes.list()) {
      const row = sessions.get(sandbox.sessionId);
      if (row?.status === 'CANCELLED') waits.add(`the sandbox of ${sandbox.sessionId}, which was cancelled, to end`);
    }
    for (const row of callbacks.values()) {
      if (row.tries === 0 && row.delivered_at === null && !history.callbacks.has(row.task_id)) {
        waits.add(`the first callback of ${row.task_id}`);
      }
    }
    for (const row of sessions.values()) {
      if (this.isClaimable(row)) waits.add(`${row.session_id} to be leased although a node is idle`);
    }
    for (const wait of this.waitingSinceMs.keys()) if (!waits.has(wait)) this.waitingSinceMs.delete(wait);
    for (const wait of waits) {
      const sinceMs = this.waitingSinceMs.get(wait) ?? timeline.nowMs;
      this.waitingSinceMs.set(wait, sinceMs);
      if (timeline.nowMs - sinceMs > PROMPT_MS) {
        timeline.reportViolation('promptness', `waited longer than ${PROMPT_MS} ms for ${wait}`);
      }
    }
  }

  /** Whether a queued session waits for its first attempt although a registered node is idle. */
  private isClaimable(row: SessionRow): boolean {
    const { database, history, plan } = this.cluster;
    if (row.status !== 'QUEUED' || row.queued_since_ms < row.not_before_ms || row.attempt > 1) return false;
    if (plan.server.max_uncollected_results !== undefined) return false;
    const { nodes, sessions } = database.rows.state;
    const busy = new Set(sessions.where((other) => other.lease_expires_ms !== null).map((other) => other.node_id));
    for (const sandbox of history.sandboxes.list()) busy.add(sandbox.nodeId);
    return [...nodes.values()].some((node) => !busy.has(node.node_id));
  }
}
