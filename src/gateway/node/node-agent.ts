import { type DeliveredResult, deliveryLength, type NodeApi, type OwnRegistration } from '../../client/node-api.ts';
import type { Clock } from '../../core/clock.ts';
import { sleep } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import { endSpanWith, passThroughTracer, type Span, type Tracer } from '../../core/tracing.ts';
import { type GatewayMetrics, recordSession } from '../../observe/gateway-metrics.ts';
import type { Logger } from '../../observe/log.ts';
import { type Lease, type RuntimeSpec, runtimeSpecSchema } from '../../schema/index.ts';
import { Attempt } from '../session/attempt.ts';
import { LeaseFence, type Renewal } from '../session/lease-fence.ts';
import { asRemains } from '../session/partial-result.ts';
import { isVerdict } from '../session/verdict.ts';
import type { NodeEngines } from './node-engines.ts';
import type { StagePools } from './stage-pools.ts';

/** Between tries to reach the server: quick at first, and never so slow that a restart of it costs more than a few seconds. */
const RETRY = { firstMs: 200, maxMs: 5_000 };
/** While shutting down, a server that cannot be reached is not waited for: the lease runs out instead. */
const CLOSING_TRIES = 3;
/** State changes are gathered this long into one heartbeat; with many sessions, 1 ms longer for each. */
const PROGRESS_GATHER_MS = 100;

/** A lease is renewed this often before it runs out, so that one lost beat costs nothing. */
const BEATS_PER_LEASE = 3;
/** A replica of the server that takes longer over a heartbeat, beyond the time for which it was to hold it, hangs. */
const ANSWER_SECONDS = 5;
/** A node that takes no sessions for now looks this often whether it can again. */
const RECHECK_MS = 1_000;
/** What results that the server does not take may hold in memory before the node takes no more sessions. */
const UNDELIVERED_BYTES = 1024 * 1024 * 1024;

/** The calls of NodeApi that an agent makes. A simulation gives its own. */
export type NodeCalls = Pick<
  NodeApi,
  'nodeId' | 'register' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial'
>;

export type NodeAgentDeps = {
  readonly api: NodeCalls;
  readonly registration: OwnRegistration;
  readonly clock: Clock;
  readonly log: Logger;
  /** Default: traces are handed on, and nothing is recorded. */
  readonly tracer?: Tracer;
  readonly metrics: GatewayMetrics;
  readonly pools: StagePools;
  readonly engines: Pick<NodeEngines, 'report' | 'apply' | 'retry'>;
  readonly leaseWaitSeconds: number;
  readonly heartbeatSeconds: number;
  /** Default: {@link UNDELIVERED_BYTES}. */
  readonly undeliveredBytes?: number;
  /** Why the node can run no sessions now; null: it can. Default: it always can. Must not reject. */
  readonly problem?: () => Promise<string | null>;
  /** What is to be delivered: a result, or the remains of an attempt that lost its lease; null when there is nothing. */
  readonly runSession: (attempt: Attempt) => Promise<DeliveredResult | null>;
  /** The result is with the server, or nobody wants it: what was recorded of the attempt need no longer be kept. */
  readonly delivered: (lease: Lease) => void;
};

/** How repeated tries of one call ended: it succeeded, was refused for good, or the server could not be reached in time. */
type Reached = { readonly how: 'done' | 'given_up' } | { readonly how: 'refused'; readonly error: FloeError };

/** The node's side of the rollout server's protocol: registers, leases what it has room for, reports, delivers. */
export class NodeAgent {
  private readonly deps: NodeAgentDeps;
  private readonly attempts = new Map<string, { attempt: Attempt; done: Promise<void> }>();
  private readonly stopping = new AbortController();
  private readonly leasing = new AbortController();
  private leaseLoopDone: Promise<void> = Promise.resolve();
  private heartbeatLoopDone: Promise<void> = Promise.resolve();
  private closing = false;
  private cancelGather: (() => void) | null = null;
  /** Whether a report of changes is under way, and whether there is more to tell since. */
  private reporting = false;
  private reportAgain = false;
  private undelivered = 0;
  /** Why no sessions are taken for now, as the server is told. */
  private refuses: string | null = null;
  private readonly fence: LeaseFence;
  private tellTakenOver: (error: FloeError) => void = () => {};
  /** Resolves when a newer process has taken this node's id over: this one has ended its sessions and is of no more use. */
  readonly takenOver: Promise<FloeError>;

  constructor(deps: NodeAgentDeps) {
    this.deps = deps;
    this.takenOver = new Promise((resolve) => {
      this.tellTakenOver = resolve;
    });
    this.fence = new LeaseFence({
      clock: deps.clock,
      live: () => this.live(),
      beatMs: () => this.beatSeconds() * 1000,
      onWake: (pausedMs) => {
        deps.log.warn({ paused_ms: Math.round(pausedMs) }, 'this process stood still');
        void this.heartbeat(0);
      },
    });
  }

  /** Resolves once the node is registered. Rejects with `unauthorized` or `schema_violation`; keeps trying otherwise. */
  async start(): Promise<void> {
    const { api, registration, log } = this.deps;
    await this.untilReached('register', async () => {
      await api.register(registration, this.stopping.signal);
      log.info({ node_id: api.nodeId }, 'node registered');
    });
    // An engine that was removed while the node was away must be gone before a session can use it.
    await this.heartbeat(0);
    this.fence.start();
    this.leaseLoopDone = this.leaseLoop();
    this.heartbeatLoopDone = this.heartbeatLoop();
  }

  /**
   * Stops sessions whose leases ran out while this process stood still, then throws when `attempt` has lost its lease. To be
   * called before anything of the attempt leaves the node.
   */
  refuseLost(attempt: Attempt): void {
    this.fence.check();
    if (attempt.stopReason === 'lease_lost') throw attempt.signal.reason;
  }

  /** The live attempt of that name, whatever its epoch. */
  attemptOf(sessionId: string, attempt: number): Attempt | undefined {
    return this.live().find((one) => one.id === sessionId && one.lease.attempt === attempt);
  }

  live(): readonly Attempt[] {
    return [...this.attempts.values()].map((entry) => entry.attempt);
  }

  /** Takes no more sessions; resolves when those that it has are delivered. */
  async drain(): Promise<void> {
    this.leasing.abort(new FloeError('not_ready', 'the node is draining'));
    // An answer with leases may be on its way still.
    await this.leaseLoopDone;
    while (this.attempts.size > 0) await Promise.all([...this.attempts.values()].map((entry) => entry.done));
  }

  /** Ends every session at once (each goes back to the queue) and stops. May be called twice. */
  async close(): Promise<void> {
    this.closing = true;
    for (const { attempt } of this.attempts.values()) attempt.stop('shutdown');
    await this.drain();
    this.stopping.abort(new FloeError('not_ready', 'the node is shutting down'));
    this.cancelGather?.();
    this.fence.close();
    await this.heartbeatLoopDone;
  }

  private async leaseLoop(): Promise<void> {
    const { api, pools, leaseWaitSeconds } = this.deps;
    const signal = AbortSignal.any([this.stopping.signal, this.leasing.signal]);
    while (!signal.aborted) {
      await this.untilUsable(signal);
      const slots = pools.admissible();
      if (slots === 0) {
        await this.capacityChange(signal);
        continue;
      }
      const reached = await this.untilReached(
        'lease',
        async () => {
          const asked = this.fence.now();
          const leases = await api.lease({ slots, wait_seconds: leaseWaitSeconds }, signal);
          for (const lease of leases) this.begin(lease, asked);
        },
        signal,
      );
      if (reached.how === 'refused') await this.pause(signal);
    }
  }

  /** A node that took sessions that it cannot run would use up their attempts. */
  private async untilUsable(signal: AbortSignal): Promise<void> {
    const { clock, log } = this.deps;
    while (!signal.aborted) {
      const refuses = await this.problem();
      if (refuses !== null && this.refuses === null)
        log.warn({ reason: refuses }, 'this node takes no sessions for now');
      if (refuses === null && this.refuses !== null)
        log.info({ reason: this.refuses }, 'this node takes sessions again');
      const news = refuses !== this.refuses;
      this.refuses = refuses;
      if (news) this.reportSoon();
      if (refuses === null) return;
      await sleep(clock, RECHECK_MS, signal).catch(() => undefined);
    }
  }

  private async problem(): Promise<string | null> {
    if (this.undelivered >= (this.deps.undeliveredBytes ?? UNDELIVERED_BYTES)) {
      return `the server has not taken ${this.undelivered} bytes of results`;
    }
    return (await this.deps.problem?.()) ?? null;
  }

  private capacityChange(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        off();
        signal.removeEventListener('abort', done);
        resolve();
      };
      const off = this.deps.pools.onChange(done);
      signal.addEventListener('abort', done, { once: true });
    });
  }

  private begin(lease: Lease, asked: Renewal): void {
    const { clock, log, runSession } = this.deps;
    const attempt: Attempt = new Attempt(
      lease,
      specOf(lease),
      clock,
      (status) => {
        if (status !== null) log.info({ ...attempt.names, status }, 'session moved');
        this.reportSoon();
      },
      this.spanOf(lease),
    );
    const key = attemptKey(lease.session_id, lease.epoch);
    log.info({ ...attempt.names, status: attempt.status }, 'session moved');
    attempt.renewal = this.fence.arrived(asked);
    if (this.fence.hasExpired(attempt)) attempt.stop('lease_lost');
    if (this.closing) attempt.stop('shutdown');
    const leave = this.deps.pools.admit();
    const done = runSession(attempt)
      .then((finished) => this.deliver(attempt, finished))
      .catch((error) => log.error({ ...attempt.names, error: asFloeError(error).message }, 'session lost'))
      .finally(() => {
        attempt.span.end(attempt.failure?.error.message ?? null);
        this.attempts.delete(key);
        leave();
        this.reportSoon();
      });
    this.attempts.set(key, { attempt, done });
  }

  private spanOf({ task, task_id, session_id, attempt, epoch, queued_ms }: Lease): Span {
    const { tracer = passThroughTracer, api } = this.deps;
    const names = { task_id, session_id, attempt, epoch, node_id: api.nodeId };
    const { policy_version, traceparent: parent } = task;
    const attributes = { ...names, harness: task.agent.harness, policy_version, queued_ms };
    return tracer.start('session_attempt', { parent, id: session_id }, attributes);
  }

  private async deliver(attempt: Attempt, finished: DeliveredResult | null): Promise<void> {
    const { log, metrics } = this.deps;
    // A lease may have run out while this process stood still.
    this.fence.check();
    if (finished === null) {
      this.deps.delivered(attempt.lease);
      log.info({ ...attempt.names, reason: attempt.stopReason }, 'session ended without a result');
      attempt.span.set({ outcome: attempt.stopReason });
      return;
    }
    const bytes = deliveryLength(finished);
    this.undelivered += bytes;
    try {
      const { summary } = finished;
      attempt.span.set({
        outcome: summary.outcome,
        reward: summary.reward,
        trainable_tokens: summary.trainable_tokens,
      });
      const names = { session_id: attempt.id, attempt: attempt.lease.attempt };
      const reached = await endSpanWith(attempt.span.child('deliver', names, 'client'), this.handIn(attempt, finished));
      if (reached.how === 'given_up') {
        log.warn({ ...attempt.names, outcome: summary.outcome }, 'session not delivered');
        return;
      }
      this.deps.delivered(attempt.lease);
      if (reached.how === 'refused') {
        log.warn({ ...attempt.names, outcome: summary.outcome }, 'the result is no longer wanted');
        return;
      }
      if (attempt.stopReason === 'lease_lost') {
        log.info({ ...attempt.names, completions: summary.completion_count }, 'remains delivered');
        return;
      }
      recordSession(metrics, attempt.lease.task.agent.harness, summary, attempt.tallies, attempt.policyVersions);
      log.info(
        {
          ...attempt.names,
          outcome: summary.outcome,
          reward: summary.reward,
          trainable_tokens: summary.trainable_tokens,
        },
        'session delivered',
      );
    } finally {
      this.undelivered -= bytes;
    }
  }

  /** A result as such; what comes too late, as the remains of its attempt. */
  private async handIn(attempt: Attempt, finished: DeliveredResult): Promise<Reached> {
    const { api } = this.deps;
    // The shutdown signal must not cut off the results that it caused.
    const { signal } = new AbortController();
    if (attempt.stopReason !== 'lease_lost') {
      const reached = await this.untilReached(
        'deliver',
        async () => {
          await api.deliverResult(finished, signal);
        },
        signal,
      );
      if (reached.how !== 'refused' || reached.error.code !== 'stale_epoch') return reached;
      attempt.stop('lease_lost');
    }
    if (finished.summary.completion_count === 0) return { how: 'done' };
    const why = new FloeError(
      'stale_epoch',
      `attempt ${attempt.lease.attempt} of session ${attempt.id} lost its lease`,
    );
    const remains = asRemains(finished, why);
    return this.untilReached(
      'deliver',
      async () => {
        await api.deliverPartial(remains, signal);
      },
      signal,
    );
  }

  private async heartbeatLoop(): Promise<void> {
    while (!this.stopping.signal.aborted) {
      const reached = await this.heartbeat(Math.min(this.deps.heartbeatSeconds, this.share() - this.answerSeconds()));
      if (reached.how === 'refused') await this.pause(this.stopping.signal);
    }
  }

  private beatSeconds(): number {
    return Math.min(this.deps.heartbeatSeconds, this.share());
  }

  /** Seconds that a heartbeat may take in all, so that no lease comes near its end though a replica hangs. */
  private share(): number {
    return Math.min(...this.live().map((attempt) => attempt.lease.lease_seconds / BEATS_PER_LEASE));
  }

  private answerSeconds(): number {
    return Math.min(ANSWER_SECONDS, this.share() / 2);
  }

  /** Something has changed that the server shall know of. */
  reportSoon(): void {
    if (this.cancelGather !== null || this.stopping.signal.aborted) return;
    // A server that is slow to answer would only get slower from reports that pile up.
    this.reportAgain = this.reporting;
    if (this.reporting) return;
    this.cancelGather = this.deps.clock.schedule(Math.max(PROGRESS_GATHER_MS, this.attempts.size), () => {
      this.cancelGather = null;
      void this.report();
    });
  }

  private async report(): Promise<void> {
    this.reporting = true;
    try {
      await this.heartbeat(0);
    } finally {
      this.reporting = false;
      if (this.reportAgain) this.reportSoon();
    }
  }

  /** Reports and renews; ends the sessions that the server wants ended. A node that the server forgot registers again. */
  private heartbeat(waitSeconds: number): Promise<Reached> {
    const { api, pools, engines } = this.deps;
    const signal = this.stopping.signal;
    return this.untilReached(
      'heartbeat',
      async () => {
        const live = this.live();
        const sessions = live.map((attempt) => attempt.progress());
        const renewal = this.fence.now();
        const body = {
          metrics: pools.metrics(),
          refuses: this.refuses,
          sessions,
          engines: engines.report(),
          wait_seconds: waitSeconds,
        };
        const reply = await api.heartbeat(body, signal, this.answerSeconds());
        // One that was held for long may be answered after a newer one.
        for (const attempt of live) if (renewal.atMs > attempt.renewal.atMs) attempt.renewal = renewal;
        for (const { session_id, epoch, reason } of reply.stop) {
          this.attempts.get(attemptKey(session_id, epoch))?.attempt.stop(reason);
        }
        if (reply.engines !== null) engines.apply(reply.engines);
        else engines.retry();
        if (reply.draining) this.leasing.abort(new FloeError('not_ready', 'the server drains this node'));
      },
      signal,
      // The next beat is worth more than repeating this one.
      waitSeconds === 0 ? 1 : Number.POSITIVE_INFINITY,
    );
  }

  /** Never to be undone: of two processes with one id the newest is right, and two that took turns would end each other's sessions. */
  private giveWay(error: FloeError): void {
    if (this.stopping.signal.aborted) return;
    this.deps.log.error({ error: error.message }, 'a newer process has this node id; this one ends its sessions');
    this.closing = true;
    for (const attempt of this.live()) attempt.stop('lease_lost');
    this.leasing.abort(error);
    this.stopping.abort(error);
    this.tellTakenOver(error);
  }

  /** What the server refuses now it may allow when somebody has put it right; until then it is not asked in a tight loop. */
  private pause(signal: AbortSignal): Promise<void> {
    return sleep(this.deps.clock, RETRY.maxMs, signal).catch(() => undefined);
  }

  /**
   * Repeats `call` until it succeeds, is refused for good, `signal` aborts, or `maxTries` are used up. Rejects only for
   * `register`, when that is refused for good. A server that has forgotten the node is told of it again.
   */
  private async untilReached(
    what: string,
    call: () => Promise<void>,
    signal: AbortSignal = this.stopping.signal,
    maxTries = Number.POSITIVE_INFINITY,
  ): Promise<Reached> {
    const { api, registration, clock, log } = this.deps;
    let forgotten = false;
    for (
      let tries = 1, delayMs = RETRY.firstMs;
      !signal.aborted;
      tries++, delayMs = Math.min(delayMs * 2, RETRY.maxMs)
    ) {
      try {
        if (forgotten) await api.register(registration, signal);
        forgotten = false;
        await call();
        return { how: 'done' };
      } catch (thrown) {
        if (signal.aborted) return { how: 'given_up' };
        const error = asFloeError(thrown, 'peer_unreachable');
        if (what === 'register' && !error.retryable) throw error;
        log.warn({ what, tries, code: error.code, error: error.message }, 'the rollout server did not take a call');
        forgotten = error.code === 'not_found' && what !== 'register' && what !== 'deliver';
        if (error.code === 'conflict' && what !== 'deliver') this.giveWay(error);
        const final = what === 'deliver' ? isVerdict(error) : !error.retryable && !forgotten;
        if (final) return { how: 'refused', error };
        if (tries >= (this.closing ? CLOSING_TRIES : maxTries)) return { how: 'given_up' };
        await sleep(clock, delayMs, signal).catch(() => undefined);
      }
    }
    return { how: 'given_up' };
  }
}

function attemptKey(sessionId: string, epoch: number): string {
  return `${sessionId}/${epoch}`;
}

function specOf(lease: Lease): RuntimeSpec {
  return lease.task.runtime ?? runtimeSpecSchema.parse({});
}
