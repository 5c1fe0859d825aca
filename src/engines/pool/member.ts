import { hostname, networkInterfaces } from 'node:os';
import { abortAfter, type LinkedAbort, linkAbort, raceAbort } from '../../core/abort.ts';
import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { EngineInfo, EngineSpec, PauseMode } from '../../schema/index.ts';
import type { Engine, EngineNotice } from '../engine.ts';
import type { Candidate } from './choice-policies.ts';
import { CircuitBreaker, OPEN_MS } from './circuit-breaker.ts';
import { changeOf, hasLostTemplate, isSameServer } from './compatibility.ts';
import { RateLimits } from './rate-limits.ts';

const CHANGED_NOTICE =
  'an engine does not answer as it did at registration; it gets no calls and is checked every few seconds';

/** The one failed status that a restarted or replaced server never sends, so that it raises no doubt. */
const TOO_MANY_REQUESTS = 429;

/** Deadline of a pause or resume request; a server that has not confirmed by then is considered not to have received it. */
const CONTROL_TIMEOUT_MS = 30_000;

/** Deadline of an engine's metrics; a scraper waits about ten seconds for all engines together. */
const METRICS_TIMEOUT_MS = 5_000;

type MemberDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /** Connects to the same server once more; `null` when the engine was passed in connected, and cannot be verified. */
  readonly connect: ((spec: EngineSpec) => Promise<Engine>) | null;
  /** The version of the weights, for engines that are reconnected. */
  readonly policyVersion: () => string | null;
  /** See `EnginePoolsDeps.host`. */
  readonly host: string | null;
  /** Called when the server is no longer the one that joined the pool. The caller removes the member. */
  readonly onReplaced: (member: Member, error: FloeError) => void;
};

/** One engine of a pool: its calls in flight, its circuit breaker, and whether it must be verified to be the server that joined. */
export class Member implements Candidate {
  readonly id: string;
  readonly spec: EngineSpec;
  readonly local: boolean;
  readonly breaker: CircuitBreaker;
  /** What the server reported when it joined. */
  readonly joined: EngineInfo;
  inflight = 0;
  /** `null` when the specification sets no rate limits. */
  readonly limits: RateLimits | null;
  private readonly deps: MemberDeps;
  private current: Engine;
  /** What the server reported when the connection in use was made. */
  private connected: EngineInfo;
  /** The signals of the calls in flight, by the connection that they use. */
  private readonly calls = new Map<Engine, Set<LinkedAbort>>();
  private removed = false;
  private closed = false;
  private suspect = false;
  private wasHealthy = true;
  private needsResume = false;
  private verification: Promise<void> | null = null;
  private lastRefusal: { readonly error: FloeError; readonly untilMs: number } | null = null;

  constructor(engine: Engine, spec: EngineSpec, deps: MemberDeps) {
    const info = engine.info();
    this.id = info.engine_id;
    this.spec = { ...spec, engine_id: info.engine_id };
    this.local = isLocal(info.base_url, hostNames(deps.host));
    this.limits = spec.limits === null ? null : new RateLimits(spec.limits, deps.clock);
    this.breaker = new CircuitBreaker(deps.clock);
    this.deps = deps;
    this.joined = info;
    this.connected = info;
    this.current = engine;
  }

  get engine(): Engine {
    return this.current;
  }

  /** Whether it has left the pool, so that no call may reach it. */
  get isRemoved(): boolean {
    return this.removed;
  }

  get isFull(): boolean {
    const { max_concurrency } = this.spec;
    return (max_concurrency !== null && this.inflight >= max_concurrency) || (this.limits?.waitMs() ?? 0) > 0;
  }

  /** Whether {@link verify} must succeed before the engine is used. */
  get needsVerification(): boolean {
    const { healthy } = this.current.info();
    if (this.wasHealthy && !healthy) this.markSuspect();
    this.wasHealthy = healthy;
    return this.suspect;
  }

  /** Whether it needs verification and should be verified now. */
  get isVerificationDue(): boolean {
    return (
      this.needsVerification &&
      this.verification === null &&
      !this.breaker.isCoolingDown &&
      this.refusalInForce() === null
    );
  }

  /** Whether a call may use it without verification. */
  get isReady(): boolean {
    return this.breaker.admitsCall && !this.needsVerification;
  }

  get acceptsIds(): boolean {
    const { capabilities } = this.current.info();
    return capabilities.token_ids && capabilities.token_input !== 'none';
  }

  info(): EngineInfo {
    const own = this.current.info();
    // An adapter that reported itself unhealthy and was verified since has had no call yet that would prove it healthy.
    const healthy = this.breaker.isClosed && !this.needsVerification && (own.healthy || this.deps.connect !== null);
    const held = this.limits === null ? {} : { held_back_ms: this.limits.waitMs() };
    return { ...own, healthy, inflight: this.inflight, ...held };
  }

  recordSuccess(): void {
    this.breaker.recordSuccess();
  }

  /** Whether a failure only defers calls, which the rate limits enforce from now on. */
  isDeferral({ details }: FloeError): boolean {
    if (this.limits === null || details.status !== TOO_MANY_REQUESTS) return false;
    if (typeof details.retry_after_ms !== 'number') return false;
    this.limits.refused(details.retry_after_ms);
    return true;
  }

  /**
   * Records how a call failed. A failure that is also seen when another server takes over the address makes verification necessary.
   * While `paused` it does not count against the engine's health: calls are aborted on purpose.
   */
  recordFailure(error: FloeError, paused: boolean): void {
    if (this.removed || (error.code !== 'engine_unavailable' && error.code !== 'engine_error')) return;
    if (!paused) this.breaker.recordFailure();
    if (error.details.status !== TOO_MANY_REQUESTS) this.markSuspect();
    // The adapter's own verdict on this failure is not a second failure.
    this.wasHealthy = this.current.info().healthy;
  }

  /** Sends a pause. Rejects as `Engine.pause` does, and with `engine_unavailable` after {@link CONTROL_TIMEOUT_MS}. */
  async pause(mode: PauseMode): Promise<void> {
    // A resume that failed earlier no longer matters: the one after this pause does.
    this.needsResume = false;
    const what = `pausing engine ${this.id}`;
    await withDeadline(this.deps.clock, CONTROL_TIMEOUT_MS, what, (signal) => this.current.pause(mode, signal));
  }

  /** Sends a resume. When that fails the engine is excluded until a later resume succeeds, since its calls would hang. */
  async resume(): Promise<void> {
    try {
      await this.sendResume();
    } catch (error) {
      this.needsResume = true;
      this.suspect = true;
      throw error;
    }
  }

  /** The server's metrics in Prometheus text; `null` when it has none or does not answer in time. */
  async metrics(): Promise<string | null> {
    const what = `the metrics of engine ${this.id}`;
    try {
      return await withDeadline(this.deps.clock, METRICS_TIMEOUT_MS, what, (signal) => this.current.metrics(signal));
    } catch {
      // Its absence from the text shows the failure.
      return null;
    }
  }

  /** Runs one call, which begins before this returns. It is aborted by `signal`, and by {@link remove} with `abort`. */
  async run<T>(signal: AbortSignal, call: (engine: Engine, signal: AbortSignal) => Promise<T>): Promise<T> {
    const engine = this.current;
    const abort = linkAbort(signal);
    const calls = this.calls.get(engine) ?? new Set();
    this.calls.set(engine, calls.add(abort));
    try {
      return await call(engine, abort.signal);
    } finally {
      abort.release();
      calls.delete(abort);
      this.closeUnused(engine);
    }
  }

  /** Closes the connection when the calls in flight have ended; with `abort` they are aborted immediately. */
  remove(abort: boolean): void {
    if (this.removed) return;
    this.removed = true;
    const reason = new FloeError('engine_unavailable', `engine ${this.id} was deregistered`, { engine_id: this.id });
    if (abort) for (const calls of this.calls.values()) for (const call of calls) call.abort(reason);
    this.closeUnused(this.current);
  }

  /** Closes all connections immediately, calls in flight included. */
  async close(): Promise<void> {
    this.removed = true;
    this.closed = true;
    const engines = new Set([this.current, ...this.calls.keys()]);
    await Promise.all([...engines].map((engine) => engine.close()));
  }

  /**
   * Connects once more and compares the server with the one that joined. Rejects with `engine_unavailable` while the comparison is
   * impossible, `engine_error` when the server has been replaced, after `onReplaced` was called. Concurrent calls share the result.
   */
  verify(): Promise<void> {
    const refusal = this.refusalInForce();
    if (refusal !== null) return Promise.reject(refusal);
    this.verification ??= this.reconnect().finally(() => {
      this.verification = null;
    });
    return this.verification;
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

  /** Replaces the connection in use by `fresh` if the server is still the one that joined. Throws `engine_error` when it is not. */
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

  /** The error of a failed verification for the calls that need the engine. */
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
    // A server with wrong answers may still be starting, or its answers arrive incomplete: it is verified repeatedly, indefinitely.
    if (error.code === 'engine_error') {
      if (this.lastRefusal === null) notice(CHANGED_NOTICE, { engine_id: this.id, reason: error.message });
      this.lastRefusal = { error: unverified, untilMs: clock.monotonicMs() + OPEN_MS };
    }
    return unverified;
  }

  /** Closes a connection that no call uses or will use. */
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

/** Runs `work` with a signal that aborts after `limitMs`, and rejects with `engine_unavailable` then, even if `work` ignores it. */
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

/** Whether a server is on this host: the host of its URL is a loopback name or address, or one of `names`. */
export function isLocal(baseUrl: string, names: ReadonlySet<string> = hostNames(null)): boolean {
  const host = new URL(baseUrl).hostname.replace(/^\[|\]$/g, '').toLowerCase();
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host) || names.has(host);
}

/** The names of this host, in lower case: the configured one, the host name, and the addresses of its interfaces. */
function hostNames(configured: string | null): ReadonlySet<string> {
  const addresses = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  const names = [hostname(), ...(configured === null ? [] : [configured]), ...addresses.map(({ address }) => address)];
  return new Set(names.map((name) => name.toLowerCase()));
}
