import { backoffMs, type Clock, FloeError, raceAbort, sleep } from '@floe-rl/core';
import type { EngineInfo } from '@floe-rl/core/schema';
import type { CallContext, Engine, PromptIds } from '../engine.ts';
import type { Slot } from './engine-pool.ts';
import type { Member } from './member.ts';
import type { PauseGate } from './pausing.ts';
import type { EngineRegistry } from './registry.ts';
import type { WaitingCalls } from './waiting-calls.ts';

/**
 * Maximum time for which a call is retried. Weight updates and restarts make engines unavailable for up to about a minute, and a session
 * should survive them.
 */
export const CALL_PATIENCE_MS = 60_000;
/**
 * Maximum number of tries of one call that lose their connection. It prevents a request that crashes engines from being sent to all of them
 * repeatedly.
 */
const MAX_LOST_CONNECTIONS = 3;
/** Back-off between rounds of tries. A round ends when the call has failed on every engine of the pool. */
const ROUND_BACKOFF = { baseMs: 100, maxMs: 5_000 };

/** A request to an engine of a pool, and the engines that may answer it. */
export type EngineCall<T> = {
  readonly context: CallContext;
  /**
   * Whether the call samples tokens. A sampling call takes a slot of its engine and waits while the engines are paused; other calls do
   * neither.
   */
  readonly sampling: boolean;
  /**
   * The prompt of token ids; `null` when the call has none. A call with such a prompt requires an engine that accepts ids, and is rejected by
   * an engine with another tokenizer or template than the prompt was made with.
   */
  readonly prompt: PromptIds | null;
  /**
   * Whether the call continues a reply that was admitted earlier. If so, it waits for the end of a pause even when the pause rejects new
   * calls.
   */
  readonly admitted: boolean;
  /** Position of the call in the pool's queue; the lowest ticket is served first. A call that does not sample never waits in the queue. */
  readonly ticket: number;
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

export type PooledCallDeps = {
  readonly clock: Clock;
  readonly gate: PauseGate;
  readonly registry: EngineRegistry;
  readonly waiting: WaitingCalls;
};

/** One call to a pool: it is tried on one engine after another until one of them answers. */
export class PooledCall<T> {
  private readonly call: EngineCall<T>;
  private readonly deps: PooledCallDeps;
  private readonly signal: AbortSignal;
  /** The engines on which the call has failed in the current round of tries. */
  private readonly failedOn = new Set<Member>();
  /** The failure of the last try, or of the search for an engine; `null` before the first failure. */
  private failure: FloeError | null = null;
  private deadlineMs: number;
  private rounds = 0;
  private lostConnections = 0;

  constructor(call: EngineCall<T>, deps: PooledCallDeps, signal: AbortSignal) {
    this.call = call;
    this.deps = deps;
    this.signal = signal;
    this.deadlineMs = deps.clock.monotonicMs() + CALL_PATIENCE_MS;
  }

  /**
   * Sends the call to engines of its pool until one answers. Rejects with the last failure after {@link CALL_PATIENCE_MS}, not counting the
   * time spent waiting for a slot, for a rate limit or for the end of a pause. Rejects immediately with any error other than
   * `engine_unavailable`, and with the signal's reason when it aborts. May be called once.
   */
  async answer(): Promise<T> {
    try {
      for (;;) {
        const slot = await this.slot();
        if (slot === null) {
          await this.pauseBetweenRounds(this.failure ?? emptyPoolError(this.call.context));
          continue;
        }
        const outcome = await this.tryOnce(slot);
        if ('result' in outcome) return outcome.result;
        if ('rejection' in outcome) throw outcome.rejection;
        if (outcome.failure !== null) this.retryAfter(outcome.failure, slot.member);
      }
    } finally {
      if (this.failure !== null) this.deps.waiting.forgetFailure(this.call);
    }
  }

  /**
   * Waits for the end of a pause, and then for a slot of an engine. Resolves with `null` when the call has failed on every suitable engine, or
   * the pool has no suitable engine.
   */
  private async slot(): Promise<Slot | null> {
    const { call, failedOn, signal } = this;
    const { gate, registry, waiting } = this.deps;
    const { context, sampling, ticket } = call;
    const admitted = call.admitted || this.failure !== null;
    if (gate.closed !== null && (sampling || admitted)) {
      const passGate = (): Promise<void> => (admitted ? gate.waitUntilOpen(signal) : gate.pass(signal));
      await this.uncounted(() => waiting.during(context, passGate));
      // A new round begins, so that engines on which the call failed before or during the pause may be tried immediately.
      failedOn.clear();
      this.rounds = 0;
    }
    signal.throwIfAborted();
    const pool = registry.poolOf(context.pool);
    if (pool === null) return null;
    const wanted = { sessionId: context.sessionId, sampling, ids: call.prompt !== null, ticket, failedOn };
    const available = pool.slotNow(wanted);
    if (available !== 'wait') return available;
    return this.uncounted(() => waiting.during(context, () => pool.acquire(wanted, signal)));
  }

  /**
   * Tries the call once on the engine of `slot`. The outcome is `failure: null` when the engine has left its pool, a pause has begun, or a
   * rate limit has deferred the call; the caller then tries once more.
   */
  private async tryOnce({ member, end }: Slot): Promise<TryOutcome<T>> {
    const { call, signal } = this;
    const { gate, waiting } = this.deps;
    let tokens = 0;
    let release = (): void => {};
    try {
      if (member.isRemoved) return { failure: null };
      if (member.needsVerification) {
        const unusable = await this.verificationFailure(member);
        if (unusable !== null) return { failure: unusable };
      }
      const { engine } = member;
      const known = call.sampling ? engine.policyVersion() : null;
      const version = known instanceof Promise ? await raceAbort(known, signal) : known;
      // Nothing is awaited between this check and the call to the engine, so that no call reaches a removed engine or starts during a
      // pause. After a pause the version is requested again, because the weights were probably updated during it.
      if (member.isRemoved || member.engine !== engine || (call.sampling && gate.closed !== null)) {
        return { failure: null };
      }
      signal.throwIfAborted();
      const rejection = call.prompt && foreignPromptError(call.prompt, engine.info());
      if (rejection !== null) return { rejection };
      if (this.failure !== null) waiting.forgetFailure(call);
      const connection = member.hold(signal);
      release = connection.release;
      const result = await call.run(engine, connection.signal, version);
      tokens = call.tokensOf(result);
      member.breaker.recordSuccess();
      return { result };
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (FloeError.is(error) && member.isDeferral(error)) return { failure: null };
      if (FloeError.is(error)) member.recordFailure(error, gate.closed !== null);
      if (!FloeError.is(error) || error.code !== 'engine_unavailable') throw error;
      return { failure: error };
    } finally {
      release();
      end(tokens);
    }
  }

  /** Verifies that the engine is still the server that was registered. Returns the failure; `null` when the engine may be used. */
  private async verificationFailure(member: Member): Promise<FloeError | null> {
    const { signal } = this;
    try {
      await raceAbort(member.verify(), signal);
      return null;
    } catch (error) {
      if (signal.aborted || !FloeError.is(error)) throw error;
      // When the server was replaced by another, the error has the code `engine_error` and the engine has been removed from its pool. If it
      // was the pool's last engine, the call fails with this error instead of waiting for another engine.
      const isPoolEmpty = (this.deps.registry.poolOf(this.call.context.pool)?.engines.length ?? 0) === 0;
      if (error.code === 'engine_error' && isPoolEmpty) throw error;
      return error;
    }
  }

  /** Runs `wait` and postpones the call's deadline by the duration of `wait`. */
  private async uncounted<W>(wait: () => Promise<W>): Promise<W> {
    const { clock } = this.deps;
    const startMs = clock.monotonicMs();
    const result = await wait();
    this.deadlineMs += clock.monotonicMs() - startMs;
    return result;
  }

  /** Records the failure of a try, after which another engine is tried. Throws `failure` when the call must not be retried. */
  private retryAfter(failure: FloeError, member: Member): void {
    this.noteFailure(failure);
    this.failedOn.add(member);
    if (failure.details.connection_lost === true && ++this.lostConnections >= MAX_LOST_CONNECTIONS) throw failure;
  }

  /** Waits before the next round of tries. Throws `failure` when the deadline would pass during the wait. */
  private async pauseBetweenRounds(failure: FloeError): Promise<void> {
    const { clock } = this.deps;
    this.noteFailure(failure);
    const waitMs = Math.max(backoffMs(ROUND_BACKOFF, this.rounds + 1), retryAfterMs(failure));
    if (clock.monotonicMs() + waitMs > this.deadlineMs) throw failure;
    await sleep(clock, waitMs, this.signal);
    this.rounds++;
    this.failedOn.clear();
  }

  private noteFailure(failure: FloeError): void {
    this.failure = failure;
    this.deps.waiting.failed(this.call, failure);
  }
}

export function emptyPoolError({ pool }: CallContext): FloeError {
  return new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
}

/**
 * Returns the error for a prompt of token ids that was made with another tokenizer or template than the engine's; `null` when they match.
 * The prompt's fingerprint differs from the engine's when the pool's engines were replaced after the prompt was made.
 */
function foreignPromptError({ fingerprint }: PromptIds, { engine_id, capabilities }: EngineInfo): FloeError | null {
  if (fingerprint === undefined || fingerprint === capabilities.template.fingerprint) return null;
  const message = `engine ${engine_id} has another tokenizer or template than the prompt was made with`;
  return new FloeError('engine_error', message, { engine_id });
}

function retryAfterMs(error: FloeError): number {
  const value = error.details.retry_after_ms;
  return typeof value === 'number' ? value : 0;
}
