import { type DeliveredResult, deliveryLength, type NodeApi, type NodeDescription } from '@floe-rl/client';
import {
  asFloeError,
  type Backoff,
  backoffMs,
  type Clock,
  endSpanWith,
  FloeError,
  GIB,
  onAbort,
  passThroughTracer,
  type Span,
  sleep,
  type Tracer,
} from '@floe-rl/core';
import { type Lease, type RuntimeSpec, runtimeSpecSchema } from '@floe-rl/core/schema';
import { type GatewayMetrics, type Logger, recordSession } from '@floe-rl/observe';
import { Attempt, type Renewal } from '../session/attempt.ts';
import { isFinalRefusal } from '../session/failure.ts';
import { LeaseFence } from '../session/lease-fence.ts';
import { asPartialResult, leaseLostError } from '../session/partial-result.ts';
import type { NodeEngines } from './node-engines.ts';
import type { StagePools } from './stage-pools.ts';

/**
 * Backoff between tries of a call to the rollout server. Its maximum is short, so that a call succeeds within seconds after the server has
 * restarted.
 */
const RETRY: Backoff = { baseMs: 200, maxMs: 5_000 };
/**
 * Maximum number of tries of a call to the rollout server while the node shuts down. If all tries to deliver a result fail, the lease of
 * the session expires.
 */
const CLOSING_TRIES = 3;
/**
 * Delay before state changes of sessions are reported, so that one heartbeat reports all changes in that time. With more than 100 sessions
 * the delay is 1 ms per session.
 */
const REPORT_DELAY_MS = 100;
/** Number of heartbeats per lease duration. With three, a lease does not expire when one or two heartbeats are lost. */
const BEATS_PER_LEASE = 3;
/**
 * Maximum time to wait for the reply to a heartbeat, in addition to the time for which the server may hold the request. A server replica
 * that takes longer counts as hung, and the call is retried.
 */
const REPLY_SECONDS = 5;
/** Interval at which a node that leases no sessions, for example because its disk is full, checks whether the reason has passed. */
const RECHECK_MS = 1_000;
/** Default number of bytes of undelivered results in memory at which the node stops leasing sessions. */
const UNDELIVERED_BYTES = GIB;

/** The methods of `NodeApi` that {@link NodeAgent} calls, so that a simulation can replace them. */
export type NodeCalls = Pick<
  NodeApi,
  'nodeId' | 'register' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial'
>;

export type NodeAgentDeps = {
  readonly api: NodeCalls;
  readonly registration: NodeDescription;
  readonly clock: Clock;
  readonly log: Logger;
  /**
   * Records the tracing spans of sessions. By default no span is recorded, and the trace context of a task is passed on to other processes.
   */
  readonly tracer?: Tracer;
  readonly metrics: GatewayMetrics;
  readonly pools: StagePools;
  readonly engines: Pick<NodeEngines, 'report' | 'apply' | 'retry'>;
  readonly leaseWaitSeconds: number;
  readonly heartbeatSeconds: number;
  /** Number of bytes of undelivered results in memory at which the node stops leasing sessions. Default: {@link UNDELIVERED_BYTES}. */
  readonly undeliveredBytes?: number;
  /**
   * Number of processes of the node. Each process reports changes less often, so that the node as a whole does not report more often. Default:
   * 1.
   */
  readonly processes?: number;
  /**
   * Resolves with the reason why the node cannot run sessions now; `null` when it can run them. Must not reject. By default the node always
   * counts as able to run sessions.
   */
  readonly problem?: () => Promise<string | null>;
  /**
   * Runs an attempt. Resolves with its result, or with its partial result when the attempt lost its lease; `null` when there is nothing to
   * deliver.
   */
  readonly runSession: (attempt: Attempt) => Promise<DeliveredResult | null>;
  /**
   * Called when the server has accepted or finally refused the result of an attempt, so that the records of the attempt can be removed from
   * the disk.
   */
  readonly onDelivered: (lease: Lease) => void;
};

/**
 * How a call with retries ended: `done` when it succeeded, `refused` when a further retry cannot succeed, `given_up` when all tries were
 * used up or the call was aborted.
 */
type CallOutcome = { readonly how: 'done' | 'given_up' } | { readonly how: 'refused'; readonly error: FloeError };

/**
 * The node's side of the protocol with the rollout server: registers the node, leases sessions while there is capacity, sends heartbeats
 * and delivers results.
 */
export class NodeAgent {
  private readonly deps: NodeAgentDeps;
  private readonly attempts = new Map<string, { attempt: Attempt; done: Promise<void> }>();
  private readonly stopping = new AbortController();
  private readonly leasing = new AbortController();
  private leaseLoopDone: Promise<void> = Promise.resolve();
  private heartbeatLoopDone: Promise<void> = Promise.resolve();
  private closing = false;
  /** Cancels the scheduled report of state changes. */
  private cancelReport: () => void = () => {};
  /** Time at which the next report of state changes is due, on the monotonic clock; `null` when none is due. */
  private reportAtMs: number | null = null;
  /** The shortest time between two reports of progress that the server allows, in milliseconds. */
  private reportIntervalMs = 0;
  /** Whether a report of state changes is being sent. */
  private reporting = false;
  private undeliveredBytes = 0;
  /** The reason why the node leases no sessions now, as reported to the server; `null` when it leases sessions. */
  private refuses: string | null = null;
  private readonly fence: LeaseFence;
  private resolveTakenOver: (error: FloeError) => void = () => {};
  /**
   * Resolves when a newer process has registered with this node's id. This process has then ended its sessions, and the only permitted call
   * is {@link close}.
   */
  readonly takenOver: Promise<FloeError>;

  constructor(deps: NodeAgentDeps) {
    this.deps = deps;
    this.takenOver = new Promise((resolve) => {
      this.resolveTakenOver = resolve;
    });
    this.fence = new LeaseFence({
      clock: deps.clock,
      live: () => this.live(),
      beatMs: () => this.beatSeconds() * 1000,
      onWake: (pausedMs) => {
        deps.log.warn({ paused_ms: Math.round(pausedMs) }, 'this process was suspended');
        void this.heartbeat(0);
      },
    });
  }

  /**
   * Resolves once the node is registered at the rollout server. Retries on a retryable error; rejects on any other error, for example
   * `unauthorized`.
   */
  async start(): Promise<void> {
    const { api, registration, log } = this.deps;
    await this.retryCall('register', async () => {
      await api.register(registration, this.stopping.signal);
      log.info('node registered');
    });
    // The reply to this heartbeat lists the engines. The node thus removes engines that were removed from the server while the node was
    // down, before a session can use them.
    await this.heartbeat(0);
    this.fence.start();
    this.leaseLoopDone = this.leaseLoop();
    this.heartbeatLoopDone = this.heartbeatLoop();
  }

  /**
   * Stops sessions with a lease that expired while this process was suspended, then throws when `attempt` has lost its lease. To be called
   * before any data of the attempt leaves the node.
   */
  assertLease(attempt: Attempt): void {
    this.fence.check();
    if (attempt.stopReason === 'lease_lost') throw attempt.signal.reason;
  }

  /**
   * Returns the live attempt with this session id and attempt number, whatever the epoch of its lease is; `undefined` when there is none.
   */
  findAttempt(sessionId: string, attempt: number): Attempt | undefined {
    return this.live().find((live) => live.id === sessionId && live.lease.attempt === attempt);
  }

  /** Returns the attempts that have started and are not yet delivered. */
  live(): readonly Attempt[] {
    return [...this.attempts.values()].map((entry) => entry.attempt);
  }

  /** Stops leasing sessions. Resolves when the results of all live sessions are delivered. */
  async drain(): Promise<void> {
    this.leasing.abort(new FloeError('not_ready', 'the node is draining'));
    // A lease call that was sent before the abort may still return leases, and their sessions must be waited for too.
    await this.leaseLoopDone;
    while (this.attempts.size > 0) await Promise.all([...this.attempts.values()].map((entry) => entry.done));
  }

  /**
   * Stops every session immediately, so that each returns to the queue of the server, and then stops heartbeats and lease calls. May be
   * called twice.
   */
  async close(): Promise<void> {
    this.closing = true;
    for (const { attempt } of this.attempts.values()) attempt.stop('shutdown');
    await this.drain();
    this.stopping.abort(new FloeError('not_ready', 'the node is shutting down'));
    this.cancelReport();
    this.fence.close();
    await this.heartbeatLoopDone;
  }

  private async leaseLoop(): Promise<void> {
    const { api, pools, leaseWaitSeconds } = this.deps;
    const signal = AbortSignal.any([this.stopping.signal, this.leasing.signal]);
    while (!signal.aborted) {
      await this.awaitUsable(signal);
      const slots = pools.admissible();
      if (slots === 0) {
        await this.awaitCapacityChange(signal);
        continue;
      }
      const outcome = await this.retryCall(
        'lease',
        async () => {
          const requested = this.fence.now();
          const leases = await api.lease({ slots, wait_seconds: leaseWaitSeconds }, signal);
          for (const lease of leases) this.startAttempt(lease, requested);
        },
        signal,
      );
      if (outcome.how === 'refused') await this.pause(signal);
    }
  }

  /** Waits until the node can run sessions. A node that leased sessions without being able to run them would only use up their attempts. */
  private async awaitUsable(signal: AbortSignal): Promise<void> {
    const { clock, log } = this.deps;
    while (!signal.aborted) {
      const refuses = await this.problem();
      if (refuses !== null && this.refuses === null)
        log.warn({ reason: refuses }, 'this node leases no sessions until the reason has passed');
      if (refuses === null && this.refuses !== null)
        log.info({ reason: this.refuses }, 'this node leases sessions; the reason against it has passed');
      const changed = refuses !== this.refuses;
      this.refuses = refuses;
      if (changed) this.reportSoon();
      if (refuses === null) return;
      await sleep(clock, RECHECK_MS, signal).catch(() => undefined);
    }
  }

  private async problem(): Promise<string | null> {
    if (this.undeliveredBytes >= (this.deps.undeliveredBytes ?? UNDELIVERED_BYTES)) {
      return `${this.undeliveredBytes} bytes of results are not yet delivered to the server`;
    }
    return (await this.deps.problem?.()) ?? null;
  }

  /** Resolves when the node's capacity for sessions changes or the signal aborts. */
  private awaitCapacityChange(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        unsubscribe();
        release();
        resolve();
      };
      const unsubscribe = this.deps.pools.onChange(done);
      let release = (): void => {};
      release = onAbort(signal, done);
    });
  }

  private startAttempt(lease: Lease, requested: Renewal): void {
    const { clock, log, runSession } = this.deps;
    const attempt: Attempt = new Attempt(
      lease,
      specOf(lease),
      clock,
      (status) => {
        if (status !== null) log.info({ ...attempt.names, status }, 'session moved');
        this.reportProgress();
      },
      this.spanOf(lease),
    );
    const key = attemptKey(lease.session_id, lease.epoch);
    log.info({ ...attempt.names, status: attempt.status }, 'session moved');
    attempt.renewal = this.fence.renewalOnArrival(requested);
    if (this.fence.hasExpired(attempt)) attempt.stop('lease_lost');
    if (this.closing) attempt.stop('shutdown');
    const release = this.deps.pools.admit();
    const done = runSession(attempt)
      .then((finished) => this.deliver(attempt, finished))
      .catch((error) =>
        log.error({ ...attempt.names, error: asFloeError(error).message }, 'session failed to run or deliver'),
      )
      .finally(() => {
        attempt.span.end(attempt.failure?.error.message ?? null);
        this.attempts.delete(key);
        release();
        this.reportProgress();
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
    // The lease may have expired while this process was suspended. The check then sets the stop reason of the attempt to `lease_lost`.
    this.fence.check();
    if (finished === null) {
      this.deps.onDelivered(attempt.lease);
      log.info({ ...attempt.names, reason: attempt.stopReason }, 'session ended without a result');
      attempt.span.set({ outcome: attempt.stopReason });
      return;
    }
    const bytes = deliveryLength(finished);
    this.undeliveredBytes += bytes;
    try {
      const { summary } = finished;
      attempt.span.set({
        outcome: summary.outcome,
        reward: summary.reward,
        trainable_tokens: summary.trainable_tokens,
      });
      const span = attempt.span.child('deliver', attempt.names, 'client');
      const outcome = await endSpanWith(span, this.sendResult(attempt, finished));
      if (outcome.how === 'given_up') {
        log.warn(
          { ...attempt.names, outcome: summary.outcome },
          'session not delivered; its records stay for recovery',
        );
        return;
      }
      this.deps.onDelivered(attempt.lease);
      if (outcome.how === 'refused') {
        log.warn({ ...attempt.names, outcome: summary.outcome }, 'the server refused the result; it is dropped');
        return;
      }
      if (attempt.stopReason === 'lease_lost') {
        log.info({ ...attempt.names, completions: summary.completion_count }, 'partial result delivered');
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
      this.undeliveredBytes -= bytes;
    }
  }

  /** Delivers the result of an attempt to the server, or a partial result when the attempt has lost its lease. */
  private async sendResult(attempt: Attempt, finished: DeliveredResult): Promise<CallOutcome> {
    const { api } = this.deps;
    // This signal never aborts, because the shutdown signal would interrupt the delivery of the results of stopped sessions.
    const { signal } = new AbortController();
    if (attempt.stopReason !== 'lease_lost') {
      const outcome = await this.retryCall(
        'deliver',
        async () => {
          await api.deliverResult(finished, signal);
        },
        signal,
      );
      if (outcome.how !== 'refused' || outcome.error.code !== 'stale_epoch') return outcome;
      attempt.stop('lease_lost');
    }
    if (finished.summary.completion_count === 0) return { how: 'done' };
    const partial = asPartialResult(finished, leaseLostError(attempt.lease));
    return this.retryCall(
      'deliver',
      async () => {
        await api.deliverPartial(partial, signal);
      },
      signal,
    );
  }

  private async heartbeatLoop(): Promise<void> {
    while (!this.stopping.signal.aborted) {
      const waitSeconds = Math.min(this.deps.heartbeatSeconds, this.maxBeatSeconds() - this.replySeconds());
      const outcome = await this.heartbeat(waitSeconds);
      if (outcome.how === 'refused') await this.pause(this.stopping.signal);
    }
  }

  /** Returns the longest interval between two heartbeats while the server can be reached, in seconds. */
  private beatSeconds(): number {
    return Math.min(this.deps.heartbeatSeconds, this.maxBeatSeconds());
  }

  /** Returns the maximum total duration of a heartbeat in seconds, so that no lease expires while one replica of the server hangs. */
  private maxBeatSeconds(): number {
    return Math.min(...this.live().map((attempt) => attempt.lease.lease_seconds / BEATS_PER_LEASE));
  }

  /**
   * Returns the number of seconds to wait for the reply to a heartbeat, in addition to the time for which the server may hold the request.
   */
  private replySeconds(): number {
    return Math.min(REPLY_SECONDS, this.maxBeatSeconds() / 2);
  }

  /**
   * Schedules a heartbeat that reports state changes to the server. Changes that happen within {@link REPORT_DELAY_MS} are reported
   * together.
   */
  reportSoon(): void {
    this.scheduleReport(this.reportDelayMs());
  }

  /** Like {@link reportSoon}, but not more often than the server allows. It is for the progress of sessions, which is not urgent. */
  private reportProgress(): void {
    this.scheduleReport(Math.max(this.reportDelayMs(), (this.deps.processes ?? 1) * this.reportIntervalMs));
  }

  private reportDelayMs(): number {
    return (this.deps.processes ?? 1) * Math.max(REPORT_DELAY_MS, this.attempts.size);
  }

  private scheduleReport(delayMs: number): void {
    if (this.stopping.signal.aborted) return;
    const atMs = this.deps.clock.monotonicMs() + delayMs;
    if (this.reportAtMs !== null && this.reportAtMs <= atMs) return;
    this.reportAtMs = atMs;
    // Only one report of state changes is sent at a time, because concurrent reports would slow down a slow server even more.
    if (!this.reporting) this.startReport();
  }

  private startReport(): void {
    if (this.reportAtMs === null) return;
    const { clock } = this.deps;
    this.cancelReport();
    this.cancelReport = clock.schedule(Math.max(0, this.reportAtMs - clock.monotonicMs()), () => void this.report());
  }

  private async report(): Promise<void> {
    this.reporting = true;
    this.reportAtMs = null;
    try {
      await this.heartbeat(0);
    } finally {
      this.reporting = false;
      this.startReport();
    }
  }

  /**
   * Sends a heartbeat, which renews the leases of the live sessions. Stops the sessions that the reply names and applies the list of
   * engines in the reply. The server may hold the reply for `waitSeconds`.
   */
  private heartbeat(waitSeconds: number): Promise<CallOutcome> {
    const { api, pools, engines } = this.deps;
    const signal = this.stopping.signal;
    return this.retryCall(
      'heartbeat',
      async () => {
        const live = this.live();
        const sessions = live.map((attempt) => attempt.report());
        const renewal = this.fence.now();
        const body = {
          metrics: pools.metrics(),
          refuses: this.refuses,
          sessions,
          engines: engines.report(),
          wait_seconds: waitSeconds,
        };
        const reply = await api.heartbeat(body, signal, this.replySeconds());
        // The server may hold a reply, so the replies may arrive in another order than the requests. An older renewal must not replace a
        // newer one.
        for (const attempt of live) if (renewal.atMs > attempt.renewal.atMs) attempt.renewal = renewal;
        for (const { session_id, epoch, reason } of reply.stop) {
          this.attempts.get(attemptKey(session_id, epoch))?.attempt.stop(reason);
        }
        if (reply.engines !== null) engines.apply(reply.engines);
        else engines.retry();
        this.reportIntervalMs = reply.report_ms ?? 0;
        pools.setLeaseAhead(reply.lease_ahead ?? true);
        if (reply.draining) this.leasing.abort(new FloeError('not_ready', 'the server drains this node'));
      },
      signal,
      // A heartbeat that reports changes (`waitSeconds` 0) is tried only once, because the next heartbeat contains the same changes.
      waitSeconds === 0 ? 1 : Number.POSITIVE_INFINITY,
    );
  }

  /**
   * Ends this process because a newer one has registered with the id of its node. It does not register again, because two processes that
   * displace each other in turn would end each other's sessions.
   */
  private yieldToNewer(error: FloeError): void {
    if (this.stopping.signal.aborted) return;
    this.deps.log.error(
      { error: error.message },
      'a newer process has registered with this node id; this one ends its sessions',
    );
    this.closing = true;
    for (const attempt of this.live()) attempt.stop('lease_lost');
    this.leasing.abort(error);
    this.stopping.abort(error);
    this.resolveTakenOver(error);
  }

  /** Waits before a call that the server refused is repeated. The server may accept the call once an operator has corrected the cause. */
  private pause(signal: AbortSignal): Promise<void> {
    return sleep(this.deps.clock, RETRY.maxMs, signal).catch(() => undefined);
  }

  /**
   * Repeats `call` until it succeeds, the server refuses it with an error that a retry cannot cure, `signal` aborts, or `maxTries` tries have
   * failed. The returned outcome says which of these happened. Rejects only when the server refuses a `register` call for good. When the
   * server does not know the node, registers the node before the next try.
   */
  private async retryCall(
    what: 'register' | 'lease' | 'heartbeat' | 'deliver',
    call: () => Promise<void>,
    signal: AbortSignal = this.stopping.signal,
    maxTries = Number.POSITIVE_INFINITY,
  ): Promise<CallOutcome> {
    const { api, registration, clock, log } = this.deps;
    let unregistered = false;
    for (let tries = 1; !signal.aborted; tries++) {
      try {
        if (unregistered) await api.register(registration, signal);
        unregistered = false;
        await call();
        return { how: 'done' };
      } catch (thrown) {
        if (signal.aborted) return { how: 'given_up' };
        const error = asFloeError(thrown, 'peer_unreachable');
        if (what === 'register' && !error.retryable) throw error;
        log.warn({ what, tries, code: error.code, error: error.message }, 'a call to the rollout server failed');
        unregistered = error.code === 'not_found' && what !== 'register' && what !== 'deliver';
        if (error.code === 'conflict' && what !== 'deliver') this.yieldToNewer(error);
        const final = what === 'deliver' ? isFinalRefusal(error) : !error.retryable && !unregistered;
        if (final) return { how: 'refused', error };
        if (tries >= (this.closing ? CLOSING_TRIES : maxTries)) return { how: 'given_up' };
        await sleep(clock, backoffMs(RETRY, tries), signal).catch(() => undefined);
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
