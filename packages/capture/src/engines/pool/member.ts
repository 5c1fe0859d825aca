import { hostname, networkInterfaces } from 'node:os';
import { abortAfter, asFloeError, type Clock, FloeError, LightAbort, onAbort, raceAbort } from '@floe-rl/core';
import type { EngineInfo, EngineSpec, PauseMode, Place } from '@floe-rl/core/schema';
import type { Engine, EngineNotice } from '../engine.ts';
import { AdaptiveLimit } from './adaptive-concurrency.ts';
import type { Candidate, Distance } from './choice-policies.ts';
import { CircuitBreaker, OPEN_MS } from './circuit-breaker.ts';
import { changeOf, hasLostTemplate, isSameServer } from './compatibility.ts';
import { loadOf } from './engine-load.ts';
import { RateLimits } from './rate-limits.ts';

const CHANGED_NOTICE =
  'an engine does not answer as it did at registration; it gets no calls and is checked every few seconds';

/**
 * HTTP status of a server whose rate limit was exceeded. A restarted or replaced server never sends it, so a failure with this status does not
 * cause a verification of the server.
 */
const TOO_MANY_REQUESTS = 429;

/** Time limit of a pause or resume request. A server that has not confirmed the request by then is treated as if it had not received it. */
const CONTROL_TIMEOUT_MS = 30_000;

/** Time limit for fetching an engine's metrics. A scraper waits about ten seconds for all engines together. */
const METRICS_TIMEOUT_MS = 5_000;

/** Interval in milliseconds between two readings of an engine's load. */
const LOAD_INTERVAL_MS = 5_000;

type MemberDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /**
   * Opens a new connection to the engine's server, to verify that it is still the same engine. `null` when the engine was added as a connected
   * object; such an engine is never verified.
   */
  readonly connect: ((spec: EngineSpec) => Promise<Engine>) | null;
  /** Returns the policy version of the current weights, which is set on engines that are reconnected; `null` when unknown. */
  readonly policyVersion: () => string | null;
  /**
   * A name or address of this host that identifies local engines, in addition to what the operating system reports; `null` when there is none.
   */
  readonly host: string | null;
  /** Where this host is, to which the places of engines are compared. */
  readonly place: Place;
  /** Called when another server has replaced the registered server. The callee removes the member from the pool. */
  readonly onReplaced: (member: Member, error: FloeError) => void;
  /** Called when a verification of this engine has ended, whether it succeeded or failed. The function gives slots to the waiting calls. */
  readonly onVerificationEnd: () => void;
  /** Called when {@link Member.adaptive} may have changed. The function gives slots to the waiting calls. */
  readonly onLimitChange: () => void;
};

type HeldConnection = { readonly signal: AbortSignal; readonly release: () => void };

/**
 * One engine of a pool. It tracks the engine's calls in flight and its circuit breaker. It also tracks whether the server must be verified to
 * be still the registered server.
 */
export class Member implements Candidate {
  readonly id: string;
  readonly spec: EngineSpec;
  readonly distance: Distance;
  readonly breaker: CircuitBreaker;
  /** Properties that the server reported when it was added to the pool. */
  readonly joined: EngineInfo;
  inflight = 0;
  /** Limits on requests and tokens per minute; `null` when the specification sets none. */
  readonly limits: RateLimits | null;
  /** Limit of the concurrent calls that follows the load of the server; `null` when the specification sets none. */
  readonly adaptive: AdaptiveLimit | null;
  private readonly deps: MemberDeps;
  private current: Engine;
  /** Properties that the server reported when the current connection was made. */
  private connected: EngineInfo;
  /** The abort signals of the calls in flight, grouped by the connection that they use. */
  private readonly calls = new Map<Engine, Set<LightAbort>>();
  private removed = false;
  private closed = false;
  private suspect = false;
  private wasHealthy = true;
  private needsResume = false;
  private verification: Promise<void> | null = null;
  private cancelReading = (): void => {};
  private lastRefusal: { readonly error: FloeError; readonly untilMs: number } | null = null;

  constructor(engine: Engine, spec: EngineSpec, deps: MemberDeps) {
    const info = engine.info();
    this.id = info.engine_id;
    this.spec = { ...spec, engine_id: info.engine_id };
    this.distance = isLocal(info.base_url, hostNames(deps.host)) ? 0 : distanceBetween(deps.place, spec.place);
    this.limits = spec.limits === null ? null : new RateLimits(spec.limits, deps.clock);
    this.breaker = new CircuitBreaker(deps.clock);
    this.adaptive = spec.adaptive_concurrency === null ? null : new AdaptiveLimit(spec.adaptive_concurrency);
    this.deps = deps;
    this.joined = info;
    this.connected = info;
    this.current = engine;
    if (this.adaptive !== null) this.readLoadLater(this.adaptive);
  }

  get engine(): Engine {
    return this.current;
  }

  /** Whether the engine has left the pool, so that no call may be sent to it. */
  get isRemoved(): boolean {
    return this.removed;
  }

  get isFull(): boolean {
    const { maxConcurrency } = this;
    return (maxConcurrency !== null && this.inflight >= maxConcurrency) || (this.limits?.waitMs() ?? 0) > 0;
  }

  /** Most concurrent calls at present; `null` when there is no limit. */
  get maxConcurrency(): number | null {
    const { max_concurrency } = this.spec;
    if (this.adaptive === null) return max_concurrency;
    return Math.min(this.adaptive.limit, max_concurrency ?? Number.POSITIVE_INFINITY);
  }

  /** Whether {@link verify} must succeed before the engine is used. */
  get needsVerification(): boolean {
    const { healthy } = this.current.info();
    if (this.wasHealthy && !healthy) this.markSuspect();
    this.wasHealthy = healthy;
    return this.suspect;
  }

  /**
   * Whether a verification of the engine is needed and none is running, so that it should start now. After a failed verification this is
   * false for some seconds.
   */
  get isVerificationDue(): boolean {
    return (
      this.needsVerification &&
      this.verification === null &&
      !this.breaker.isCoolingDown &&
      this.refusalInForce() === null
    );
  }

  /** Whether a call may use the engine now: its circuit breaker admits calls, and it needs no verification. */
  get isReady(): boolean {
    return this.breaker.admitsCall && !this.needsVerification;
  }

  get acceptsIds(): boolean {
    const { capabilities } = this.current.info();
    return capabilities.token_ids && capabilities.token_input !== 'none';
  }

  info(): EngineInfo {
    const own = this.current.info();
    // An adapter that has reported itself unhealthy continues to do so until a call succeeds. If the server has been verified since then,
    // the engine counts as healthy.
    const healthy = this.breaker.isClosed && !this.needsVerification && (own.healthy || this.deps.connect !== null);
    const held = this.limits === null ? {} : { held_back_ms: this.limits.waitMs() };
    const adaptive = this.adaptive === null ? {} : { adaptive: this.adaptive.state() };
    return { ...own, healthy, inflight: this.inflight, max_concurrency: this.maxConcurrency, ...held, ...adaptive };
  }

  /**
   * Whether the failure is a rate limit, so that the call is only deferred. If so, this method also makes the rate limits delay further
   * calls.
   */
  isDeferral({ details }: FloeError): boolean {
    if (this.limits === null || details.status !== TOO_MANY_REQUESTS) return false;
    if (typeof details.retry_after_ms !== 'number') return false;
    this.limits.refused(details.retry_after_ms);
    return true;
  }

  /**
   * Records how a call failed. When the failure can also mean that another server has taken over the address, the engine must be verified
   * before its next call. While `paused`, the failure does not count against the engine's health, because calls are aborted on purpose
   * during a pause.
   */
  recordFailure(error: FloeError, paused: boolean): void {
    if (this.removed || (error.code !== 'engine_unavailable' && error.code !== 'engine_error')) return;
    if (!paused) this.breaker.recordFailure();
    if (error.details.status !== TOO_MANY_REQUESTS) this.markSuspect();
    // The adapter now reports itself unhealthy because of this failure. Storing this state keeps the failure from being counted a second
    // time.
    this.wasHealthy = this.current.info().healthy;
  }

  /** Sets the policy version on every connection to the server, including replaced ones that calls in flight still use. */
  setPolicyVersion(version: string): void {
    for (const engine of this.connections()) engine.setPolicyVersion(version);
  }

  /** Calls `Engine.weightsMayHaveChanged` for every connection to the server, including replaced ones that calls in flight still use. */
  weightsMayHaveChanged(): void {
    for (const engine of this.connections()) engine.weightsMayHaveChanged();
  }

  /**
   * Sends a pause request to the server. Rejects as `Engine.pause` does, and with `engine_unavailable` after {@link CONTROL_TIMEOUT_MS}.
   */
  async pause(mode: PauseMode): Promise<void> {
    // A resume that failed earlier need not be repeated, because another resume follows this pause.
    this.needsResume = false;
    const what = `pausing engine ${this.id}`;
    await withDeadline(this.deps.clock, CONTROL_TIMEOUT_MS, what, (signal) => this.current.pause(mode, signal));
  }

  /**
   * Sends a resume request to the server. When that fails, the engine is excluded until a later resume succeeds, because calls to a paused
   * server would hang.
   */
  async resume(): Promise<void> {
    try {
      await this.sendResume();
    } catch (error) {
      this.needsResume = true;
      this.suspect = true;
      throw error;
    }
  }

  /** Fetches the server's metrics in Prometheus text; `null` when the server has none or does not answer in time. */
  async metrics(): Promise<string | null> {
    const what = `the metrics of engine ${this.id}`;
    try {
      return await withDeadline(this.deps.clock, METRICS_TIMEOUT_MS, what, (signal) => this.current.metrics(signal));
    } catch {
      // The failure is not logged, because it is visible in the metrics text, where this engine is missing.
      return null;
    }
  }

  /**
   * Keeps the current connection open for a call. The returned signal aborts when `signal` does, or when {@link remove} is called with
   * `abort`. The caller calls `release` once, when its call has ended.
   */
  hold(signal: AbortSignal): HeldConnection {
    const engine = this.current;
    const abort = new LightAbort();
    const stopWatching = onAbort(signal, () => abort.abort(signal.reason));
    let calls = this.calls.get(engine);
    if (calls === undefined) {
      calls = new Set();
      this.calls.set(engine, calls);
    }
    calls.add(abort);
    const release = (): void => {
      stopWatching();
      calls.delete(abort);
      this.closeUnused(engine);
    };
    return { signal: abort, release };
  }

  /** Removes the engine. Its connection is closed when the calls in flight have ended; with `abort` these calls are aborted immediately. */
  remove(abort: boolean): void {
    this.removed = true;
    this.cancelReading();
    const reason = new FloeError('engine_unavailable', `engine ${this.id} was deregistered`, { engine_id: this.id });
    if (abort) for (const calls of this.calls.values()) for (const call of calls) call.abort(reason);
    this.closeUnused(this.current);
  }

  /** Closes all connections immediately, without waiting for calls in flight. */
  async close(): Promise<void> {
    this.removed = true;
    this.closed = true;
    this.cancelReading();
    await Promise.all([...this.connections()].map((engine) => engine.close()));
  }

  /**
   * Opens a new connection and compares the server with the registered server. Rejects with `engine_unavailable` while the comparison is
   * impossible, and with `engine_error`, after calling `onReplaced`, when the server has been replaced. Concurrent calls of this method share
   * one verification.
   */
  verify(): Promise<void> {
    const refusal = this.refusalInForce();
    if (refusal !== null) return Promise.reject(refusal);
    this.verification ??= this.reconnect().finally(() => {
      this.verification = null;
      this.deps.onVerificationEnd();
    });
    return this.verification;
  }

  /** Reads the load of the server at regular intervals, for as long as the engine is in the pool. */
  private readLoadLater(adaptive: AdaptiveLimit): void {
    this.cancelReading = this.deps.clock.schedule(LOAD_INTERVAL_MS, () => {
      void this.metrics().then((text) => {
        if (this.removed) return;
        adaptive.observe(text === null ? null : loadOf(text), this.inflight);
        this.deps.onLimitChange();
        this.readLoadLater(adaptive);
      });
    });
  }

  private connections(): ReadonlySet<Engine> {
    return new Set([this.current, ...this.calls.keys()]);
  }

  private markSuspect(): void {
    if (this.deps.connect !== null) this.suspect = true;
  }

  private refusalInForce(): FloeError | null {
    const last = this.lastRefusal;
    return last !== null && this.deps.clock.monotonicMs() < last.untilMs ? last.error : null;
  }

  private async sendResume(): Promise<void> {
    const what = `resuming engine ${this.id}`;
    await withDeadline(this.deps.clock, CONTROL_TIMEOUT_MS, what, (signal) => this.current.resume(signal));
  }

  private async reconnect(): Promise<void> {
    const { connect } = this.deps;
    try {
      if (this.needsResume) {
        await this.sendResume();
        this.needsResume = false;
      }
      if (connect !== null) this.adopt(await connect(this.spec));
      this.suspect = false;
      this.lastRefusal = null;
    } catch (error) {
      throw this.refused(asFloeError(error, 'engine_error'));
    }
  }

  /** Replaces the current connection by `fresh` if the server is still the registered server. Throws `engine_error` when it is not. */
  private adopt(fresh: Engine): void {
    const before = this.current;
    const info = fresh.info();
    const change = this.removed ? null : changeOf(this.joined, info);
    const isTemplateLost = !this.removed && change === null && hasLostTemplate(this.joined, info);
    if (this.removed || change !== null || isTemplateLost || isSameServer(this.connected, info)) this.discard(fresh);
    else {
      const version = this.deps.policyVersion();
      if (version !== null) fresh.setPolicyVersion(version);
      this.current = fresh;
      this.connected = info;
      this.closeUnused(before);
    }
    if (isTemplateLost) throw new FloeError('engine_error', `engine ${this.id} no longer renders chat messages`);
    if (change === null) return;
    throw new FloeError('engine_error', `engine ${this.id} was replaced by another server: ${change}`, {
      engine_id: this.id,
      replaced: true,
    });
  }

  /** Records a failed verification, unless the engine was removed. Returns the error of further calls on this engine. */
  private refused(error: FloeError): FloeError {
    if (this.removed) return error;
    this.breaker.recordFailure();
    const { clock, notice, onReplaced } = this.deps;
    if (error.details.replaced === true) {
      onReplaced(this, error);
      return error;
    }
    const unverified = new FloeError(
      'engine_unavailable',
      `engine ${this.id} is excluded until it is verified to be the server that joined: ${error.message}`,
      { engine_id: this.id },
      error,
    );
    // A server that gives wrong answers may still be starting, so its verification is repeated without limit, every {@link OPEN_MS}.
    if (error.code === 'engine_error') {
      if (this.lastRefusal === null) notice(CHANGED_NOTICE, { engine_id: this.id, reason: error.message });
      this.lastRefusal = { error: unverified, untilMs: clock.monotonicMs() + OPEN_MS };
    }
    return unverified;
  }

  /** Closes the connection `engine` if no call uses it and no later call will use it. */
  private closeUnused(engine: Engine): void {
    if (this.calls.get(engine)?.size === 0) this.calls.delete(engine);
    if (this.closed || this.calls.has(engine) || (engine === this.current && !this.removed)) return;
    this.discard(engine);
  }

  private discard(engine: Engine): void {
    engine.close().catch((error) => {
      this.deps.notice('closing a connection to an engine failed', { engine_id: this.id, reason: String(error) });
    });
  }
}

/**
 * Runs `work` with a signal that aborts after `limitMs`. After that time it rejects with `engine_unavailable`, even if `work` ignores the
 * signal.
 */
async function withDeadline<T>(
  clock: Clock,
  limitMs: number,
  what: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const limit = abortAfter(
    clock,
    limitMs,
    () => new FloeError('engine_unavailable', `${what} took more than ${limitMs} ms`),
  );
  try {
    return await raceAbort(work(limit.signal), limit.signal);
  } finally {
    limit.release();
  }
}

/** Whether a server is on this host, which holds when the host of its URL is a loopback name or address, or one of `names`. */
export function isLocal(baseUrl: string, names: ReadonlySet<string> = hostNames(null)): boolean {
  const host = new URL(baseUrl).hostname.replace(/^\[|\]$/g, '').toLowerCase();
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host) || names.has(host);
}

/**
 * Returns the distance between two different hosts. Racks of different zones may have the same name, so they are one only if the zones do not
 * differ.
 */
export function distanceBetween(one: Place, other: Place): Distance {
  const isZoneKnown = one.zone !== null && other.zone !== null;
  if (isZoneKnown && one.zone !== other.zone) return 3;
  if (one.rack !== null && one.rack === other.rack) return 1;
  return isZoneKnown ? 2 : 3;
}

/** Returns the names of this host in lower case: the configured name, the host name, and the addresses of its network interfaces. */
function hostNames(configured: string | null): ReadonlySet<string> {
  const addresses = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  const names = [hostname(), ...(configured === null ? [] : [configured]), ...addresses.map(({ address }) => address)];
  return new Set(names.map((name) => name.toLowerCase()));
}
