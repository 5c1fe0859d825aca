import { createHash } from 'node:crypto';
import type { Lease, SessionResult, TaskRequest } from '@floe-rl/core/schema';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

type Submission = {
  readonly trainer: string;
  readonly sessionIds: readonly string[];
  readonly request: TaskRequest;
};

/** What the checks need of a result that a trainer has read. `digest` is equal for equal results. */
export type ReadResult = Pick<SessionResult, 'outcome' | 'epoch'> & { readonly digest: string };

type ReceivedCallback = { readonly key: string; readonly body: string; readonly acknowledged: boolean };

/**
 * Records what the server acknowledged or sent to trainers and nodes, and which sandboxes run. The checks compare this record with the
 * stored rows.
 */
export class History {
  readonly sandboxes: RunningSandboxes;
  /** Submissions that the server acknowledged, by task id. */
  readonly submissions = new Map<string, Submission>();
  /** Ids of the tasks and sessions whose cancellation the server acknowledged. */
  readonly cancelled = new Set<string>();
  /** Results that trainers have read, by the name of the trainer and then by cursor. */
  readonly read = new Map<string, Map<number, ReadResult>>();
  /** Callbacks that trainers received, by task id. They include callbacks that the trainer answered with an error. */
  readonly callbacks = new Map<string, ReceivedCallback[]>();
  /** Partial results that the server acknowledged. Each is identified by `<session id>/<lease epoch>` of its attempt. */
  readonly acknowledgedPartials = new Set<string>();
  /** Id of the node process that received the lease of a session. The key is `<session id>/<lease epoch>`. */
  private readonly holders = new Map<string, string>();
  /** For each request that got leases, how long node and session waited for each other, in ms. */
  readonly leaseWaitsMs: number[] = [];
  private readonly timeline: Timeline;

  constructor(timeline: Timeline) {
    this.timeline = timeline;
    this.sandboxes = new RunningSandboxes(timeline);
  }

  /**
   * Records that the node process `instance` received a lease. Reports a violation when a process has received this lease before, or when
   * `instance` is not `owner`, the process that was registered for the node when the lease was granted.
   */
  addLease(instance: string, owner: string | undefined, lease: Lease): void {
    const key = `${lease.session_id}/${lease.epoch}`;
    if (instance !== owner) {
      this.timeline.reportViolation('takeover', `${key} was leased to ${instance} although ${owner} has its node`);
    }
    const before = this.holders.get(key);
    if (before !== undefined) {
      this.timeline.reportViolation('one holder', `${key} was leased to ${before} and to ${instance}`);
    }
    this.holders.set(key, instance);
  }

  /**
   * Records how long the node and a session waited for each other, in ms. The wait begins with the node's request for leases or when the last
   * of the leased sessions was queued, whichever is later.
   */
  addLeaseWait(requestMs: number, leases: readonly Lease[]): void {
    if (leases.length === 0) return;
    this.leaseWaitsMs.push(Math.min(requestMs, ...leases.map((lease) => lease.queued_ms)));
  }

  holder(sessionId: string, epoch: number): string | undefined {
    return this.holders.get(`${sessionId}/${epoch}`);
  }

  addSubmission(taskId: string, submission: Submission): void {
    const before = this.submissions.get(taskId);
    if (
      before !== undefined &&
      before.sessionIds.join() !== submission.sessionIds.slice(0, before.sessionIds.length).join()
    ) {
      this.timeline.reportViolation('one submit', `a repeated submission of task ${taskId} got other sessions`);
    }
    if (before === undefined) this.submissions.set(taskId, submission);
  }

  addReadResult(trainer: string, result: SessionResult): void {
    const cursor = result.cursor ?? 0;
    const results = this.read.get(trainer) ?? new Map<number, ReadResult>();
    this.read.set(trainer, results);
    const digest = createHash('sha1').update(JSON.stringify(result)).digest('base64');
    const before = results.get(cursor);
    if (before !== undefined && before.digest !== digest) {
      this.timeline.reportViolation('stable results', `cursor ${cursor} was read with different contents`);
    }
    results.set(cursor, { outcome: result.outcome, epoch: result.epoch, digest });
  }

  addCallback(taskId: string, received: ReceivedCallback): void {
    const before = this.callbacks.get(taskId) ?? [];
    const first = before[0];
    if (first !== undefined && (first.key !== received.key || first.body !== received.body)) {
      const difference = first.key === received.key ? 'bodies' : 'idempotency keys';
      this.timeline.reportViolation('stable callbacks', `the callbacks of task ${taskId} have different ${difference}`);
    }
    this.callbacks.set(taskId, [...before, received]);
  }
}

type Sandbox = {
  readonly process: SimProcess;
  readonly sessionId: string;
  readonly epoch: number;
  readonly nodeId: string;
};

/** The sandboxes that are running in a simulated cluster. A sandbox that is still in this list after all sessions have ended was leaked. */
class RunningSandboxes {
  private readonly timeline: Timeline;
  private readonly running = new Map<string, Sandbox>();

  constructor(timeline: Timeline) {
    this.timeline = timeline;
  }

  list(): Sandbox[] {
    return [...this.running.values()];
  }

  start(process: SimProcess, nodeId: string, { session_id: sessionId, epoch }: Lease): void {
    const key = `${sessionId}/${epoch}`;
    const other = this.running.get(key);
    if (other !== undefined) {
      const message = `${key} runs on ${other.process.name} and is started on ${process.name}`;
      this.timeline.reportViolation('one holder', message);
    }
    this.timeline.record(process.name, `starts the sandbox of ${key}`);
    this.running.set(key, { process, sessionId, epoch, nodeId });
  }

  end(process: SimProcess, lease: Lease): void {
    const key = `${lease.session_id}/${lease.epoch}`;
    if (this.running.get(key)?.process === process) this.running.delete(key);
  }

  endAllOf(process: SimProcess): void {
    for (const [key, sandbox] of this.running) if (sandbox.process === process) this.running.delete(key);
  }
}
