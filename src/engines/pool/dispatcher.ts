import { type Clock, sleep } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { EngineInfo } from '../../schema/index.ts';
import type { CallNames, Engine } from '../engine.ts';
import type { Gate } from './gate.ts';
import type { Member } from './member.ts';
import type { Slot, SlotQueue } from './slot-queue.ts';

/** Weight updates and restarts take engines away for about this long; a session should outlive them. */
export const PATIENCE_MS = 60_000;
/** A request that makes engines drop their connections must not be sent round all of them for ever. */
const MAX_LOST_CONNECTIONS = 3;
/** First pause after every engine was tried; doubles up to {@link MAX_PAUSE_MS}. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5_000;

export type Job<T> = {
  readonly names: CallNames;
  /** Takes a slot, and stops at the gate; look-ups do neither. */
  readonly sampling: boolean;
  /** Only engines that can be prompted with ids will do. */
  readonly ids: boolean;
  /** Has been past the gate before: it waits there, whatever new calls meet. */
  readonly admitted: boolean;
  /** See `SlotNeed`. */
  readonly ticket: number;
  /** Why the call cannot be given to this engine, which is no fault of its; null: it can. */
  unfit(engine: EngineInfo): FloeError | null;
  /** Calls the engine before it returns. */
  run(engine: Engine, signal: AbortSignal): Promise<T>;
  /** Tokens that a call of this result came to. */
  tokensOf(result: T): number;
};

export type DispatcherDeps = {
  readonly clock: Clock;
  readonly gate: Gate;
  readonly queueOf: (pool: string) => SlotQueue;
};

/** Sends a call to one engine after the other, until one answers. */
export class Dispatcher {
  private readonly deps: DispatcherDeps;
  private nextTicket = 0;
  /** Calls that wait at the gate or in a queue, by session. */
  private readonly awaiting = new Map<string, number>();
  /** Calls that failed at every engine so far, with the last failure, and are at none. */
  private readonly inVain = new Map<Pick<Job<unknown>, 'names'>, FloeError>();

  constructor(deps: DispatcherDeps) {
    this.deps = deps;
  }

  ticket(): number {
    return this.nextTicket++;
  }

  /** See `EnginePool.awaitsTurn`. */
  awaitsTurn(sessionId: string): boolean {
    return this.awaiting.has(sessionId);
  }

  /** See `EnginePool.failureOf`. */
  failureOf(sessionId: string): FloeError | null {
    for (const [job, failure] of this.inVain) if (job.names.sessionId === sessionId) return failure;
    return null;
  }

  /**
   * Rejects with the last failure when {@link PATIENCE_MS} have passed, waiting for a slot, for limits and for the gate not counted; at once with
   * what is no `engine_unavailable`, or with the signal's reason.
   */
  async send<T>(job: Job<T>, signal: AbortSignal): Promise<T> {
    try {
      return await this.untilAnswered(job, signal);
    } finally {
      this.inVain.delete(job);
    }
  }

  private async untilAnswered<T>(job: Job<T>, signal: AbortSignal): Promise<T> {
    const attempts = new Attempts(this.deps.clock);
    let failure: FloeError | null = null;
    for (;;) {
      const admitted = job.admitted || failure !== null;
      if (this.deps.gate.closed !== null && (job.sampling || admitted)) {
        await attempts.outside(() => this.inTurn(job, () => this.passGate(admitted, signal)));
        attempts.afresh();
      }
      const slot = await attempts.outside(() => this.inTurn(job, () => this.acquire(job, attempts.tried, signal)));
      if (slot === null) {
        failure ??= new FloeError('engine_unavailable', `no engine is registered in pool ${job.names.pool}`);
        this.inVain.set(job, failure);
        await attempts.rest(failure, signal);
        continue;
      }
      const outcome = await this.once(slot, job, signal);
      if ('result' in outcome) return outcome.result;
      if ('unfit' in outcome) throw outcome.unfit;
      if (outcome.failure === null) continue;
      failure = outcome.failure;
      this.inVain.set(job, failure);
      attempts.failed(slot.member, failure);
    }
  }

  private async inTurn<T, W>({ names: { sessionId } }: Job<T>, wait: () => Promise<W>): Promise<W> {
    this.awaiting.set(sessionId, (this.awaiting.get(sessionId) ?? 0) + 1);
    try {
      return await wait();
    } finally {
      const others = (this.awaiting.get(sessionId) ?? 1) - 1;
      if (others === 0) this.awaiting.delete(sessionId);
      else this.awaiting.set(sessionId, others);
    }
  }

  /** A call that was there before the pause waits for its end, whatever new ones meet. */
  private passGate(admitted: boolean, signal: AbortSignal): Promise<void> {
    return admitted ? this.deps.gate.opened(signal) : this.deps.gate.pass(signal);
  }

  private acquire<T>(job: Job<T>, tried: ReadonlySet<Member>, signal: AbortSignal): Promise<Slot | null> {
    const { sampling, ids, ticket, names } = job;
    return this.deps.queueOf(names.pool).acquire({ sessionId: names.sessionId, sampling, ids, ticket, tried }, signal);
  }

  /** A failure that may be tried elsewhere; null: the engine has left, or the gate has closed, before it was called, or its limits hold the call back. */
  private async once<T>(
    slot: Slot,
    job: Job<T>,
    signal: AbortSignal,
  ): Promise<{ readonly result: T } | { readonly failure: FloeError | null } | { readonly unfit: FloeError }> {
    const { member, end } = slot;
    let tokens = 0;
    try {
      if (member.gone) return { failure: null };
      if (member.doubtful) {
        const unusable = await this.verified(member, job, signal);
        if (unusable !== null) return { failure: unusable };
      }
      // Nothing is awaited from here to the engine: what has left the pool, or a closed gate, is not passed.
      if (member.gone || (job.sampling && this.deps.gate.closed !== null)) return { failure: null };
      signal.throwIfAborted();
      const unfit = job.unfit(member.engine.info());
      if (unfit !== null) return { unfit };
      this.inVain.delete(job);
      const result = await member.run(signal, job.run);
      tokens = job.tokensOf(result);
      member.succeeded();
      return { result };
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (FloeError.is(error) && member.heldBack(error)) return { failure: null };
      if (FloeError.is(error)) member.failed(error, this.deps.gate.closed !== null);
      if (!FloeError.is(error) || error.code !== 'engine_unavailable') throw error;
      return { failure: error };
    } finally {
      end(tokens);
    }
  }

  private async verified<T>(member: Member, job: Job<T>, signal: AbortSignal): Promise<FloeError | null> {
    try {
      await orAborted(member.verify(), signal);
      return null;
    } catch (error) {
      if (signal.aborted || !FloeError.is(error)) throw error;
      // One that has become another is out; who has nowhere else to go hears why.
      if (error.code === 'engine_error' && this.deps.queueOf(job.names.pool).engines.length === 0) throw error;
      return error;
    }
  }
}

/** What one call has tried, and how long it may go on. */
class Attempts {
  readonly tried = new Set<Member>();
  private readonly clock: Clock;
  private giveUpMs: number;
  private pauseMs = FIRST_PAUSE_MS;
  private lostConnections = 0;

  constructor(clock: Clock) {
    this.clock = clock;
    this.giveUpMs = clock.monotonicMs() + PATIENCE_MS;
  }

  /** Time that is not the call's own. */
  async outside<T>(wait: () => Promise<T>): Promise<T> {
    const startMs = this.clock.monotonicMs();
    const result = await wait();
    this.giveUpMs += this.clock.monotonicMs() - startMs;
    return result;
  }

  /** Throws `failure` when the call must not be sent again. */
  failed(member: Member, failure: FloeError): void {
    this.tried.add(member);
    if (failure.details.connection_lost === true && ++this.lostConnections >= MAX_LOST_CONNECTIONS) throw failure;
  }

  /** What failed before or during a pause may be tried at once behind it. */
  afresh(): void {
    this.tried.clear();
    this.pauseMs = FIRST_PAUSE_MS;
  }

  /** Between rounds. Throws `failure` when there is no time for another one. */
  async rest(failure: FloeError, signal: AbortSignal): Promise<void> {
    const waitMs = Math.max(this.pauseMs, retryAfterMs(failure));
    if (this.clock.monotonicMs() + waitMs > this.giveUpMs) throw failure;
    await sleep(this.clock, waitMs, signal);
    this.pauseMs = Math.min(this.pauseMs * 2, MAX_PAUSE_MS);
    this.tried.clear();
  }
}

function retryAfterMs(error: FloeError): number {
  const value = error.details.retry_after_ms;
  return typeof value === 'number' ? value : 0;
}

/** Settles with `promise`, or rejects with the signal's reason when that comes first. */
function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
