import { backoffMs, type Clock, FloeError, raceAbort, sleep } from '@floe-rl/core';
import type { CallContext, Engine } from '../engine.ts';
import type { Slot } from './engine-pool.ts';
import type { Member } from './member.ts';
import type { PauseGate } from './pausing.ts';
import type { EngineRegistry } from './registry.ts';

/**
 * Maximum time for which a call is retried. Weight updates and restarts make engines unavailable for up to about a minute, and a session
 * should survive them.
 */
const CALL_PATIENCE_MS = 60_000;
/**
 * Maximum number of tries of one call that lose their connection. It prevents a request that crashes engines from being sent to all of them
 * repeatedly.
 */
const MAX_LOST_CONNECTIONS = 3;
/** Back-off between rounds of tries. A round ends when the call has failed on every engine of the pool. */
const ROUND_BACKOFF = { baseMs: 100, maxMs: 5_000 };

/** Interval in milliseconds at which an empty pool is checked for an engine, which may be registered through the API at any time. */
const EMPTY_POOL_POLL_MS = 100;

/** A call that waits for an engine of a pool, or runs on one. */
export type PooledCall<T> = {
  readonly context: CallContext;
  /**
   * Whether the call samples tokens. A sampling call takes a slot of its engine and waits while the engines are paused; other calls do
   * neither.
   */
  readonly sampling: boolean;
  /** Whether the call requires an engine that accepts a prompt of token ids. */
  readonly ids: boolean;
  /**
   * Whether the call continues a reply that was admitted earlier. If so, it waits for the end of a pause even when the pause rejects new
   * calls.
   */
  readonly admitted: boolean;
  /** Position of the call in the pool's queue; the lowest ticket is served first. A call that does not sample never waits in the queue. */
  readonly ticket: number;
  /** Returns the error for an available engine that must not get this call; `null` when the call may be sent to the engine. */
  rejectionBy(engine: Engine): FloeError | null;
  /**
   * Sends the call to the engine. It must do so synchronously, before it returns its promise. `policyVersion` is the version of the engine's
   * weights; `null` when it is unknown or when the call does not sample.
   */
  run(engine: Engine, signal: AbortSignal, policyVersion: string | null): Promise<T>;
  /** Returns the number of prompt and reply tokens that the call used, which is charged to the engine's rate limits. */
  tokensOf(result: T): number;
};

/**
 * Outcome of one try of a call: the engine's `result`, a `failure` after which the call may be retried on another engine, or a `rejection`
 * that ends the call. `failure` is `null` when the try ended before the engine was called.
 */
type TryOutcome<T> =
  | { readonly result: T }
  | { readonly failure: FloeError | null }
  | { readonly rejection: FloeError };

type DispatcherDeps = {
  readonly clock: Clock;
  readonly gate: PauseGate;
  readonly registry: Pick<EngineRegistry, 'poolOf'>;
};

/** Sends each call to one engine after another until one of them answers. */
export class Dispatcher {
  private readonly deps: DispatcherDeps;
  private nextTicket = 0;
  /** Number of calls that wait for the end of a pause or for a slot, keyed by session id. */
  private readonly waiting = new Map<string, number>();
  /** The last failure of each call that failed on an engine and now waits, either for its retry or for an engine to be registered. */
  private readonly failures = new Map<Pick<PooledCall<unknown>, 'context'>, FloeError>();

  constructor(deps: DispatcherDeps) {
    this.deps = deps;
  }

  ticket(): number {
    return this.nextTicket++;
  }

  /** Whether a call of the session waits for the end of a pause, for a free slot, or for a rate limit. */
  isWaiting(sessionId: string): boolean {
    return this.waiting.has(sessionId);
  }

  /**
   * Returns the last failure of the call with this completion id while the call is being retried or waits for an engine to be registered;
   * `null` when there is no such call.
   */
  failureOf(completionId: string): FloeError | null {
    for (const [call, failure] of this.failures) if (call.context.completionId === completionId) return failure;
    return null;
  }

  /**
   * Resolves when the pool of the call has an engine. Rejects with `engine_unavailable` when it stays empty for {@link CALL_PATIENCE_MS},
   * and with the signal's reason when it aborts.
   */
  async ready(context: CallContext, signal: AbortSignal): Promise<void> {
    const { clock, registry } = this.deps;
    if (registry.poolOf(context.pool) !== null) return;
    const deadlineMs = clock.monotonicMs() + CALL_PATIENCE_MS;
    const call = { context };
    try {
      while (registry.poolOf(context.pool) === null) {
        const failure = emptyPoolError(context);
        if (clock.monotonicMs() >= deadlineMs) throw failure;
        this.failures.set(call, failure);
        await sleep(clock, EMPTY_POOL_POLL_MS, signal);
      }
    } finally {
      this.failures.delete(call);
    }
  }

  /**
   * Sends the call to engines of its pool until one answers. Rejects with the last failure after {@link CALL_PATIENCE_MS}, not counting the
   * time spent waiting for a slot, for a rate limit or for the end of a pause. Rejects immediately with any error other than
   * `engine_unavailable`, and with the signal's reason when it aborts.
   */
  async send<T>(call: PooledCall<T>, signal: AbortSignal): Promise<T> {
    const tries = new CallTries(this.deps.clock);
    const { sampling, ids, ticket, context } = call;
    const wanted = { sessionId: context.sessionId, sampling, ids, ticket, failedOn: tries.failedOn };
    let failure: FloeError | null = null;
    try {
      for (;;) {
        const admitted = call.admitted || failure !== null;
        if (this.deps.gate.closed !== null && (call.sampling || admitted)) {
          await tries.uncounted(() => this.counted(call, () => this.passGate(admitted, signal)));
          tries.restartRound();
        }
        signal.throwIfAborted();
        const pool = this.deps.registry.poolOf(call.context.pool);
        let slot: Slot | null = null;
        if (pool !== null) {
          const available = pool.slotNow(wanted);
          const wait = (): Promise<Slot | null> => this.counted(call, () => pool.acquire(wanted, signal));
          slot = available === 'wait' ? await tries.uncounted(wait) : available;
        }
        if (slot === null) {
          failure ??= emptyPoolError(call.context);
          this.failures.set(call, failure);
          await tries.pauseBetweenRounds(failure, signal);
          continue;
        }
        const outcome = await this.tryOnce(slot, call, signal);
        if ('result' in outcome) return outcome.result;
        if ('rejection' in outcome) throw outcome.rejection;
        if (outcome.failure === null) continue;
        failure = outcome.failure;
        this.failures.set(call, failure);
        tries.recordFailure(slot.member, failure);
      }
    } finally {
      if (failure !== null) this.failures.delete(call);
    }
  }

  /** Counts the call as one of its session's waiting calls while `wait` runs. */
  private async counted<T, W>({ context: { sessionId } }: PooledCall<T>, wait: () => Promise<W>): Promise<W> {
    this.waiting.set(sessionId, (this.waiting.get(sessionId) ?? 0) + 1);
    try {
      return await wait();
    } finally {
      const others = (this.waiting.get(sessionId) ?? 1) - 1;
      if (others === 0) this.waiting.delete(sessionId);
      else this.waiting.set(sessionId, others);
    }
  }

  private passGate(admitted: boolean, signal: AbortSignal): Promise<void> {
    return admitted ? this.deps.gate.waitUntilOpen(signal) : this.deps.gate.pass(signal);
  }

  /**
   * Tries the call once on the engine of `slot`. The outcome is `failure: null` when the engine has left its pool, a pause has begun, or a
   * rate limit has deferred the call; the caller then tries once more.
   */
  private async tryOnce<T>(slot: Slot, call: PooledCall<T>, signal: AbortSignal): Promise<TryOutcome<T>> {
    const { member, end } = slot;
    let tokens = 0;
    try {
      if (member.isRemoved) return { failure: null };
      if (member.needsVerification) {
        const unusable = await this.verificationFailure(member, call, signal);
        if (unusable !== null) return { failure: unusable };
      }
      const { engine } = member;
      const current = call.sampling ? engine.policyVersion() : null;
      const version = current instanceof Promise ? await raceAbort(current, signal) : current;
      // Nothing is awaited between this check and the call to the engine, so that no call reaches a removed engine or starts during a
      // pause. After a pause the version is requested again, because the weights were probably updated during it.
      if (member.isRemoved || member.engine !== engine || (call.sampling && this.deps.gate.closed !== null)) {
        return { failure: null };
      }
      signal.throwIfAborted();
      const rejection = call.rejectionBy(engine);
      if (rejection !== null) return { rejection };
      if (this.failures.size > 0) this.failures.delete(call);
      const result = await member.run(signal, (current, callSignal) => call.run(current, callSignal, version));
      tokens = call.tokensOf(result);
      member.breaker.recordSuccess();
      return { result };
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (FloeError.is(error) && member.isDeferral(error)) return { failure: null };
      if (FloeError.is(error)) member.recordFailure(error, this.deps.gate.closed !== null);
      if (!FloeError.is(error) || error.code !== 'engine_unavailable') throw error;
      return { failure: error };
    } finally {
      end(tokens);
    }
  }

  /** Verifies that the engine is still the server that was registered. Returns the failure; `null` when the engine may be used. */
  private async verificationFailure<T>(
    member: Member,
    call: PooledCall<T>,
    signal: AbortSignal,
  ): Promise<FloeError | null> {
    try {
      await raceAbort(member.verify(), signal);
      return null;
    } catch (error) {
      if (signal.aborted || !FloeError.is(error)) throw error;
      // When the server was replaced by another, the error has the code `engine_error` and the engine has been removed from its pool. If it
      // was the pool's last engine, the call fails with this error instead of waiting for another engine.
      const isPoolEmpty = (this.deps.registry.poolOf(call.context.pool)?.engines.length ?? 0) === 0;
      if (error.code === 'engine_error' && isPoolEmpty) throw error;
      return error;
    }
  }
}

/** Tracks the tries of one call: on which engines it failed, and until when it may be retried. */
class CallTries {
  /** The engines on which the call has failed in the current round of tries. */
  readonly failedOn = new Set<Member>();
  private readonly clock: Clock;
  private deadlineMs: number;
  private rounds = 0;
  private lostConnections = 0;

  constructor(clock: Clock) {
    this.clock = clock;
    this.deadlineMs = clock.monotonicMs() + CALL_PATIENCE_MS;
  }

  /** Runs `wait` and postpones the call's deadline by the duration of `wait`. */
  async uncounted<T>(wait: () => Promise<T>): Promise<T> {
    const startMs = this.clock.monotonicMs();
    const result = await wait();
    this.deadlineMs += this.clock.monotonicMs() - startMs;
    return result;
  }

  /** Records that the call failed on this engine. Throws `failure` when the call must not be retried. */
  recordFailure(member: Member, failure: FloeError): void {
    this.failedOn.add(member);
    if (failure.details.connection_lost === true && ++this.lostConnections >= MAX_LOST_CONNECTIONS) throw failure;
  }

  /** Starts a new round of tries after a pause, so that engines which failed before or during the pause may be tried immediately. */
  restartRound(): void {
    this.failedOn.clear();
    this.rounds = 0;
  }

  /** Waits before the next round of tries. Throws `failure` when the deadline would pass during the wait. */
  async pauseBetweenRounds(failure: FloeError, signal: AbortSignal): Promise<void> {
    const waitMs = Math.max(backoffMs(ROUND_BACKOFF, this.rounds + 1), retryAfterMs(failure));
    if (this.clock.monotonicMs() + waitMs > this.deadlineMs) throw failure;
    await sleep(this.clock, waitMs, signal);
    this.rounds++;
    this.failedOn.clear();
  }
}

function emptyPoolError({ pool }: CallContext): FloeError {
  return new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
}

function retryAfterMs(error: FloeError): number {
  const value = error.details.retry_after_ms;
  return typeof value === 'number' ? value : 0;
}
