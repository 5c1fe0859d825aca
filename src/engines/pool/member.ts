import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { EngineInfo, EngineSpec } from '../../schema/index.ts';
import type { Engine, EngineNotice } from '../engine.ts';
import type { Candidate } from './choice.ts';
import { CircuitBreaker, OPEN_MS } from './circuit-breaker.ts';
import { withDeadline } from './deadline.ts';
import { changeOf, lostTemplate, sameServer } from './identity.ts';
import { isLocal, ownNames } from './locality.ts';
import { RateLimits } from './rate-limits.ts';

const NOT_AS_IT_WAS = 'an engine does not answer as it did; it gets no calls, and is asked again every few seconds';

/** The one failure that no restart looks like. */
const TOO_MANY_REQUESTS = 429;

/** A server that was told to pause or go on and says nothing for this long has lost the message. */
export const CONTROL_MS = 30_000;

export type MemberDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /** Connects to the same server again; null: the engine was given, and cannot be looked at anew. */
  readonly connect: ((spec: EngineSpec) => Promise<Engine>) | null;
  /** The weights' name, for engines that are connected to anew. */
  readonly policyVersion: () => string | null;
  /** The server is no longer what joined the pool. The member has still to be removed. */
  /** See `EnginePoolDeps.host`. */
  readonly host: string | null;
  readonly onReplaced: (member: Member, error: FloeError) => void;
};

/** One engine of a pool: its calls under way, its circuit, and the doubt whether it is still the server that joined. */
export class Member implements Candidate {
  readonly id: string;
  readonly spec: EngineSpec;
  readonly local: boolean;
  readonly breaker: CircuitBreaker;
  /** What the server was when it joined. */
  readonly joined: EngineInfo;
  inflight = 0;
  /** Null: its provider sets none. */
  readonly limits: RateLimits | null;
  private readonly deps: MemberDeps;
  private current: Engine;
  /** What the server said when the connection in use was made. */
  private connected: EngineInfo;
  /** Signals of the calls under way, by the connection that they use. */
  private readonly uses = new Map<Engine, Set<AbortController>>();
  private removed = false;
  private shut = false;
  private doubted = false;
  private ownHealth = true;
  private needsResume = false;
  private verifying: Promise<void> | null = null;
  private lastRefusal: { readonly error: FloeError; readonly untilMs: number } | null = null;

  constructor(engine: Engine, spec: EngineSpec, deps: MemberDeps) {
    const info = engine.info();
    this.id = info.engine_id;
    this.spec = { ...spec, engine_id: info.engine_id };
    this.local = isLocal(info.base_url, ownNames(deps.host));
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

  /** No longer in the pool: no call may reach it. */
  get gone(): boolean {
    return this.removed;
  }

  get full(): boolean {
    const { max_concurrency } = this.spec;
    return (max_concurrency !== null && this.inflight >= max_concurrency) || (this.limits?.waitMs() ?? 0) > 0;
  }

  /** Has to be verified before it is used. */
  get doubtful(): boolean {
    const { healthy } = this.current.info();
    if (this.ownHealth && !healthy) this.doubt();
    this.ownHealth = healthy;
    return this.doubted;
  }

  /** Whether it is doubtful, and now is the time to look at it again. */
  get awaitsVerification(): boolean {
    return this.doubtful && this.verifying === null && !this.breaker.cooling && this.refusalInForce() === null;
  }

  /** Whether a call may choose it without a second thought. */
  get ready(): boolean {
    return this.breaker.admits && !this.doubtful;
  }

  get takesIds(): boolean {
    const { capabilities } = this.current.info();
    return capabilities.token_ids && capabilities.token_input !== 'none';
  }

  info(): EngineInfo {
    const own = this.current.info();
    // An engine that was verified after it had called itself unhealthy has had no call yet that would prove the contrary.
    const healthy = this.breaker.closed && !this.doubtful && (own.healthy || this.deps.connect !== null);
    const held = this.limits === null ? {} : { held_back_ms: this.limits.waitMs() };
    return { ...own, healthy, inflight: this.inflight, ...held };
  }

  succeeded(): void {
    this.breaker.succeeded();
  }

  /** Whether a failure only says that calls shall come later, which its limits see to from now on. */
  heldBack({ details }: FloeError): boolean {
    if (this.limits === null || details.status !== TOO_MANY_REQUESTS) return false;
    if (typeof details.retry_after_ms !== 'number') return false;
    this.limits.refused(details.retry_after_ms);
    return true;
  }

  /**
   * A call ended with this. What a server also does when another one takes its place raises doubt. While `paused` it is no sign of
   * bad health: calls are broken off on purpose.
   */
  failed(error: FloeError, paused: boolean): void {
    if (this.removed || (error.code !== 'engine_unavailable' && error.code !== 'engine_error')) return;
    if (!paused) this.breaker.failed();
    if (error.details.status !== TOO_MANY_REQUESTS) this.doubt();
    // What the engine thinks of itself for this failure is no news.
    this.ownHealth = this.current.info().healthy;
  }

  /** It was told to pause and could not be told to go on: a call would hang there. */
  leftPaused(): void {
    this.needsResume = true;
    this.doubted = true;
  }

  /** It is told to pause again: only the resume that follows counts. */
  pausedAnew(): void {
    this.needsResume = false;
  }

  /** Runs one call there, begun before this returns. `signal` and {@link remove} with `abort` end it. */
  async run<T>(signal: AbortSignal, call: (engine: Engine, signal: AbortSignal) => Promise<T>): Promise<T> {
    const engine = this.current;
    const controller = new AbortController();
    const forward = (): void => controller.abort(signal.reason);
    if (signal.aborted) forward();
    signal.addEventListener('abort', forward, { once: true });
    const calls = this.uses.get(engine) ?? new Set();
    this.uses.set(engine, calls.add(controller));
    try {
      return await call(engine, controller.signal);
    } finally {
      signal.removeEventListener('abort', forward);
      calls.delete(controller);
      this.closeUnused(engine);
    }
  }

  /** Closes the connection when the calls under way have ended; at once with `abort`, which ends them. */
  remove(abort: boolean): void {
    if (this.removed) return;
    this.removed = true;
    const reason = new FloeError('engine_unavailable', `engine ${this.id} was deregistered`, { engine_id: this.id });
    if (abort) for (const calls of this.uses.values()) for (const call of calls) call.abort(reason);
    this.closeUnused(this.current);
  }

  /** Closes all connections, whatever is under way. */
  async close(): Promise<void> {
    this.removed = true;
    this.shut = true;
    const engines = new Set([this.current, ...this.uses.keys()]);
    await Promise.all([...engines].map((engine) => engine.close()));
  }

  /**
   * Connects anew and compares. Rejects with `engine_unavailable` while it cannot be told, `engine_error` when the server has become
   * another, which `onReplaced` has heard. Calls that ask at the same time share the answer.
   */
  verify(): Promise<void> {
    const refusal = this.refusalInForce();
    if (refusal !== null) return Promise.reject(refusal);
    this.verifying ??= this.lookAgain().finally(() => {
      this.verifying = null;
    });
    return this.verifying;
  }

  private doubt(): void {
    if (this.deps.connect !== null) this.doubted = true;
  }

  private refusalInForce(): FloeError | null {
    const last = this.lastRefusal;
    return last !== null && this.deps.clock.monotonicMs() < last.untilMs ? last.error : null;
  }

  private async lookAgain(): Promise<void> {
    const { clock, connect } = this.deps;
    try {
      if (this.needsResume) {
        await withDeadline(clock, CONTROL_MS, `resuming engine ${this.id}`, (signal) => this.current.resume(signal));
        this.needsResume = false;
      }
      if (connect !== null) this.adopt(await connect(this.spec));
      this.doubted = false;
      this.lastRefusal = null;
    } catch (error) {
      throw this.refuse(asFloeError(error, 'engine_error'));
    }
  }

  private adopt(fresh: Engine): void {
    const before = this.current;
    const info = fresh.info();
    const change = this.removed ? null : changeOf(this.joined, info);
    const silent = !this.removed && change === null && lostTemplate(this.joined, info);
    if (this.removed || change !== null || silent || sameServer(this.connected, info)) this.discard(fresh);
    else {
      const version = this.deps.policyVersion();
      if (version !== null) fresh.setPolicyVersion(version);
      this.current = fresh;
      this.connected = info;
      this.closeUnused(before);
    }
    if (silent) throw new FloeError('engine_error', `engine ${this.id} does not render what it rendered before`);
    if (change === null) return;
    throw new FloeError('engine_error', `engine ${this.id} came back as another: ${change}`, {
      engine_id: this.id,
      replaced: true,
    });
  }

  private refuse(error: FloeError): FloeError {
    if (this.removed) return error;
    this.breaker.failed();
    const { clock, notice, onReplaced } = this.deps;
    if (error.details.replaced === true) {
      onReplaced(this, error);
      return error;
    }
    const waiting = new FloeError(
      'engine_unavailable',
      `engine ${this.id} is not used until it is found to be the one that it was: ${error.message}`,
      { engine_id: this.id },
      error,
    );
    // A server that answers wrongly may be starting, or its answers do not arrive whole: it is asked again later, for as long as it takes.
    if (error.code === 'engine_error') {
      if (this.lastRefusal === null) notice(NOT_AS_IT_WAS, { engine_id: this.id, reason: error.message });
      this.lastRefusal = { error: waiting, untilMs: clock.monotonicMs() + OPEN_MS };
    }
    return waiting;
  }

  /** Closes a connection that no call uses and none will. */
  private closeUnused(engine: Engine): void {
    if (this.uses.get(engine)?.size === 0) this.uses.delete(engine);
    if (this.shut || this.uses.has(engine) || (engine === this.current && !this.removed)) return;
    this.discard(engine);
  }

  private discard(engine: Engine): void {
    engine.close().catch((error) => {
      this.deps.notice('a connection to an engine could not be closed', { engine_id: this.id, reason: String(error) });
    });
  }
}
