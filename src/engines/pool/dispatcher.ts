import { raceAbort } from '../../core/abort.ts';
import { backoffMs } from '../../core/backoff.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { EngineInfo } from '../../schema/index.ts';
import type { CallContext, Engine } from '../engine.ts';
import type { EnginePool, Slot } from './engine-pool.ts';
import type { Member } from './member.ts';
import type { PauseGate } from './pausing.ts';

/**
 * Longest time for which a call is retried. Weight updates and restarts make engines unavailable for about this long, and a session
 * should survive them.
 */
export const CALL_PATIENCE_MS = 60_000;
/**
 * Maximum number of tries of one call that may lose their connection, so that a request that crashes engines is not sent to all of them
 * repeatedly.
 */
const MAX_LOST_CONNECTIONS = 3;
/** Pauses after rounds in which the call failed on every engine of the pool. */
const ROUND_BACKOFF = { baseMs: 100, maxMs: 5_000 };

/** A call that waits for an engine of a pool, or runs on one. */
type PooledCall<T> = {
  readonly context: CallContext;
  /** Whether the call samples tokens. Such a call takes a slot and is held at the pause gate; other calls are not. */
  readonly sampling: boolean;
  /** Whether the call requires an engine that accepts a prompt of token ids. */
  readonly ids: boolean;
  /** Whether the call has passed the pause gate before. During a pause it then waits at the gate, even when new calls are rejected. */
  readonly admitted: boolean;
  /** Position of the call in the pool's queue; the lowest ticket is served first. */
  readonly ticket: number;
  /** Returns the error for an engine that works but must not get this call; `null` when the call may be sent to the engine. */
  rejectionBy(engine: EngineInfo): FloeError | null;
  /** Sends the call to the engine. It must call the engine synchronously, before it returns its promise. */
  run(engine: Engine, signal: AbortSignal): Promise<T>;
  /** Number of prompt and reply tokens that a call with this result used, for the rate limits. */
  tokensOf(result: T): number;
};

/**
 * How one try of a call ended. A call with a `failure` may be retried on another engine; `failure` is `null` when the engine was not
 * called.
 */
type TryOutcome<T> =
  | { readonly result: T }
  | { readonly failure: FloeError | null }
  | { readonly rejection: FloeError };

type DispatcherDeps = {
  readonly clock: Clock;
  readonly gate: PauseGate;
  /** Returns the pool with this name; `null` when it has no engines. Throws `engine_unavailable` when the pools are closed. */
  readonly poolOf: (name: string) => EnginePool | null;
};

/** Sends each call to one engine after another until one of them answers. */
export class Dispatcher {
  private readonly deps: DispatcherDeps;
  private nextTicket = 0;
  /** Number of calls that wait at the pause gate or for a slot, keyed by session id. */
  private readonly waiting = new Map<string, number>();
  /** The last failure of each call that has failed on every engine so far and is not running on any engine now. */
  private readonly failures = new Map<Pick<PooledCall<unknown>, 'context'>, FloeError>();

  constructor(deps: DispatcherDeps) {
    this.deps = deps;
  }

  ticket(): number {
    return this.nextTicket++;
  }

  /** Whether a call of the session waits at the pause gate, for a free slot, or for a rate limit. */
  isWaiting(sessionId: string): boolean {
    return this.waiting.has(sessionId);
  }

  /** Returns the last failure of a call of this session that is being retried; `null` when there is no such call. */
  failureOf(sessionId: string): FloeError | null {
    for (const [call, failure] of this.failures) if (call.context.sessionId === sessionId) return failure;
    return null;
  }

  /**
   * Sends the call to engines of its pool until one answers. Rejects with the last failure after {@link CALL_PATIENCE_MS}, which does
   * not include the time spent waiting for a slot, for a rate limit or at the pause gate. Rejects immediately with any error other than
   * `engine_unavailable`, and with the signal's reason when it aborts.
   */
  async send<T>(call: PooledCall<T>, signal: AbortSignal): Promise<T> {
    try {
      return await this.sendUntilAnswered(call, signal);
    } finally {
      this.failures.delete(call);
    }
  }

  private async sendUntilAnswered<T>(call: PooledCall<T>, signal: AbortSignal): Promise<T> {
    const tries = new CallTries(this.deps.clock);
    let failure: FloeError | null = null;
    for (;;) {
      const admitted = call.admitted || failure !== null;
      if (this.deps.gate.closed !== null && (call.sampling || admitted)) {
        await tries.uncounted(() => this.counted(call, () => this.passGate(admitted, signal)));
        tries.restartRound();
      }
      const slot = await tries.uncounted(() =>
        this.counted(call, () => this.acquireSlot(call, tries.failedOn, signal)),
      );
      if (slot === null) {
        failure ??= new FloeError('engine_unavailable', `no engine is registered in pool ${call.context.pool}`);
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
  }

  /** Counts the call as waiting while `wait` runs. */
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

  private acquireSlot<T>(
    { context, sampling, ids, ticket }: PooledCall<T>,
    failedOn: ReadonlySet<Member>,
    signal: AbortSignal,
  ): Promise<Slot | null> {
    const pool = this.deps.poolOf(context.pool);
    if (pool === null) return signal.aborted ? Promise.reject(signal.reason) : Promise.resolve(null);
    return pool.acquire({ sessionId: context.sessionId, sampling, ids, ticket, failedOn }, signal);
  }

  /**
   * Tries the call once on the engine of `slot`. The outcome has neither a result nor a failure when the engine has left its pool, the
   * pause gate has closed, or a rate limit has deferred the call.
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
      // Between this check and the call to the engine nothing is awaited, so that no call reaches a removed engine or passes a closed
      // gate.
      if (member.isRemoved || (call.sampling && this.deps.gate.closed !== null)) return { failure: null };
      signal.throwIfAborted();
      const rejection = call.rejectionBy(member.engine.info());
      if (rejection !== null) return { rejection };
      this.failures.delete(call);
      const result = await member.run(signal, call.run);
      tokens = call.tokensOf(result);
      member.recordSuccess();
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

  /** Verifies that the engine is still the server that joined. Returns the failure; `null` when the engine may be used. */
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
      // A replaced engine has been removed from its pool. When it was the pool's last one, the call fails with the reason instead of
      // waiting for another engine.
      const isPoolEmpty = (this.deps.poolOf(call.context.pool)?.engines.length ?? 0) === 0;
      if (error.code === 'engine_error' && isPoolEmpty) throw error;
      return error;
    }
  }
}

/** Tracks the tries of one call: on which engines it failed, and when it must not be retried any longer. */
class CallTries {
  /** The engines on which the call has failed in this round. */
  readonly failedOn = new Set<Member>();
  private readonly clock: Clock;
  private deadlineMs: number;
  private rounds = 0;
  private lostConnections = 0;

  constructor(clock: Clock) {
    this.clock = clock;
    this.deadlineMs = clock.monotonicMs() + CALL_PATIENCE_MS;
  }

  /** Runs `wait` and postpones the deadline by its duration. */
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

  /** Starts a new round after a weight update, so that engines which failed before or during the update may be tried immediately. */
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

function retryAfterMs(error: FloeError): number {
  const value = error.details.retry_after_ms;
  return typeof value === 'number' ? value : 0;
}
