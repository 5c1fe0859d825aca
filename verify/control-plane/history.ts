import type { Lease, SessionResult, TaskRequest } from '../../src/schema/index.ts';
import { Sandboxes } from './sandboxes.ts';
import type { Timeline } from './timeline.ts';

export type Submitted = {
  readonly trainer: string;
  readonly sessionIds: readonly string[];
  readonly request: TaskRequest;
};

export type Received = { readonly key: string; readonly body: string; readonly acknowledged: boolean };

/** What those outside of floe have been told, and have done: the ledger that its state is held against. */
export class History {
  readonly sandboxes: Sandboxes;
  /** Acknowledged, by task. */
  readonly submitted = new Map<string, Submitted>();
  /** Tasks and sessions of which a cancellation was acknowledged. */
  readonly cancelled = new Set<string>();
  /** Results that each reader has read, by cursor. */
  readonly read = new Map<string, Map<number, SessionResult>>();
  /** Callbacks by task. */
  readonly callbacks = new Map<string, Received[]>();
  /** Session and epoch of remains that were acknowledged. */
  readonly keptPartials = new Set<string>();
  /** The process that got each lease, by session and epoch. */
  private readonly holders = new Map<string, string>();
  private readonly timeline: Timeline;

  constructor(timeline: Timeline) {
    this.timeline = timeline;
    this.sandboxes = new Sandboxes(timeline);
  }

  /** `owner`: the process that had the node's id when the session was leased. */
  leased(instance: string, owner: string | undefined, lease: Lease): void {
    const key = `${lease.session_id}/${lease.epoch}`;
    if (instance !== owner) {
      this.timeline.violate('takeover', `${key} was leased to ${instance} although ${owner} has its node`);
    }
    const before = this.holders.get(key);
    if (before !== undefined) {
      this.timeline.violate('one holder', `${key} was leased to ${before} and to ${instance}`);
    }
    this.holders.set(key, instance);
  }

  holder(sessionId: string, epoch: number): string | undefined {
    return this.holders.get(`${sessionId}/${epoch}`);
  }

  accepted(taskId: string, submitted: Submitted): void {
    const before = this.submitted.get(taskId);
    if (
      before !== undefined &&
      before.sessionIds.join() !== submitted.sessionIds.slice(0, before.sessionIds.length).join()
    ) {
      this.timeline.violate('one submit', `task ${taskId} was answered with different sessions`);
    }
    if (before === undefined) this.submitted.set(taskId, submitted);
  }

  readBy(reader: string, result: SessionResult): void {
    const cursor = result.cursor ?? 0;
    const seen = this.read.get(reader) ?? new Map<number, SessionResult>();
    this.read.set(reader, seen);
    const before = seen.get(cursor);
    if (before !== undefined && JSON.stringify(before) !== JSON.stringify(result)) {
      this.timeline.violate('stable results', `cursor ${cursor} was read with different contents`);
    }
    seen.set(cursor, result);
  }

  calledBack(taskId: string, received: Received): void {
    const before = this.callbacks.get(taskId) ?? [];
    const first = before[0];
    if (first !== undefined && (first.key !== received.key || first.body !== received.body)) {
      const what = first.key === received.key ? 'bodies' : 'idempotency keys';
      this.timeline.violate('stable callbacks', `task ${taskId} was called back with different ${what}`);
    }
    this.callbacks.set(taskId, [...before, received]);
  }
}
