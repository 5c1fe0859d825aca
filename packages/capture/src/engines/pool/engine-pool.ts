import { type Clock, type FloeError, onAbort } from '@floe-rl/core';
import type { ChoicePolicy } from './choice-policies.ts';
import type { Member } from './member.ts';

export type SlotRequest = {
  readonly sessionId: string;
  /** Position of the call in the queue. The call that arrived first has the lowest ticket, and keeps it when it is retried or resumed. */
  readonly ticket: number;
  /**
   * Whether the call samples tokens. A sampling call takes a slot and counts as an assignment for the choice policy; other calls do
   * neither.
   */
  readonly sampling: boolean;
  /** Whether the call requires an engine that accepts a prompt of token ids. */
  readonly ids: boolean;
  /** Engines on which this call has failed in the current round of tries. */
  readonly failedOn: ReadonlySet<Member>;
};

/** An engine reserved for one call. The caller calls `end` once, which releases the slot and reports the tokens that the call used. */
export type Slot = { readonly member: Member; readonly end: (tokens: number) => void };

type Waiter = {
  readonly request: SlotRequest;
  readonly settle: (slot: Slot | null) => void;
  readonly fail: (error: FloeError) => void;
};

/**
 * The engines of one pool and the queue of calls that wait for one of them, first come first served. An engine is ready when it needs no
 * verification and its circuit breaker does not exclude it. A call gets a ready engine. While all ready engines are full, the call waits. When
 * no engine is ready, the call gets an engine that is not ready.
 */
export class EnginePool {
  private readonly policy: ChoicePolicy;
  private readonly clock: Clock;
  private members: readonly Member[] = [];
  private waiters: Waiter[] = [];
  private cancelWake = (): void => {};

  constructor(policy: ChoicePolicy, clock: Clock) {
    this.policy = policy;
    this.clock = clock;
  }

  get engines(): readonly Member[] {
    return this.members;
  }

  /** Number of calls that wait for an engine. */
  get waiting(): number {
    return this.waiters.length;
  }

  join(member: Member): void {
    this.members = [...this.members, member];
    this.policy.joined(member);
    this.serveWaiters();
  }

  leave(members: readonly Member[]): void {
    this.members = this.members.filter((member) => !members.includes(member));
    for (const member of members) this.policy.left(member);
    // A waiting call may already have failed on every engine that is left in the pool. Such a call fails now, because no engine is left for a
    // retry.
    this.settleExhausted();
    this.serveWaiters();
  }

  /** Rejects every waiting call with `error`. */
  refuseAll(error: FloeError): void {
    this.cancelWake();
    for (const waiter of this.waiters.splice(0)) waiter.fail(error);
  }

  /**
   * Reserves an engine for a call. Resolves with a slot that the caller must end, or with `null` when the call has failed on every suitable
   * engine or the pool has no suitable engine. The engine may leave the pool before the caller uses the slot. When the signal aborts, it
   * rejects with the signal's reason and reserves no slot.
   */
  acquire(request: SlotRequest, signal: AbortSignal): Promise<Slot | null> {
    if (signal.aborted) return Promise.reject(signal.reason);
    const slot = this.slotNow(request);
    if (slot !== 'wait') return Promise.resolve(slot);
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        request,
        settle: (slot) => {
          release();
          resolve(slot);
        },
        fail: (error) => {
          release();
          reject(error);
        },
      };
      const release = onAbort(signal, () => {
        this.waiters = this.waiters.filter((other) => other !== waiter);
        reject(signal.reason);
      });
      this.enqueue(waiter);
      this.serveWaiters();
    });
  }

  /** Returns what {@link acquire} resolves with if it need not wait for an engine; `wait` if it must. */
  slotNow(request: SlotRequest): Slot | null | 'wait' {
    if (!request.sampling || this.waiters.length === 0) return this.slotFor(request);
    return this.untried(request).length === 0 ? null : 'wait';
  }

  /**
   * Gives slots to waiting calls after the pool or one of its engines has changed. When rate limits delay calls, it schedules another run
   * for the time when the first limit permits a call.
   */
  serveWaiters(): void {
    this.grantSlots();
    this.cancelWake();
    if (this.waiters.length === 0) return;
    const waits = this.members.map((member) => member.limits?.waitMs() ?? 0).filter((waitMs) => waitMs > 0);
    if (waits.length > 0) this.cancelWake = this.clock.schedule(Math.min(...waits), () => this.serveWaiters());
  }

  private grantSlots(): void {
    for (let i = 0; i < this.waiters.length; ) {
      if (this.members.length > 0 && this.members.every((member) => member.isFull)) return;
      const waiter = this.waiters[i] as Waiter;
      const slot = this.slotFor(waiter.request);
      if (slot === 'wait') i++;
      else {
        this.waiters.splice(i, 1);
        waiter.settle(slot);
      }
    }
  }

  private enqueue(waiter: Waiter): void {
    let at = this.waiters.length;
    while (at > 0 && (this.waiters[at - 1] as Waiter).request.ticket > waiter.request.ticket) at--;
    this.waiters.splice(at, 0, waiter);
  }

  private settleExhausted(): void {
    const exhausted = this.waiters.filter(({ request }) => this.untried(request).length === 0);
    this.waiters = this.waiters.filter((waiter) => !exhausted.includes(waiter));
    for (const waiter of exhausted) waiter.settle(null);
  }

  private untried({ failedOn, ids }: SlotRequest): readonly Member[] {
    return this.members.filter((member) => !failedOn.has(member) && (!ids || member.acceptsIds));
  }

  private slotFor(request: SlotRequest): Slot | null | 'wait' {
    const untried = this.untried(request);
    if (untried.length === 0) return null;
    const ready = untried.filter((member) => member.isReady);
    if (ready.length > 0 && ready.length < untried.length) this.verifyInBackground(untried);
    const usable = ready.length > 0 ? ready : untried;
    const free = request.sampling ? usable.filter((member) => !member.isFull) : usable;
    if (free.length === 0) return 'wait';
    return this.take(this.policy.pick(request.sessionId, free), request);
  }

  /** Verifies engines that need it while ready engines serve the calls, so that they become usable without delaying a call. */
  private verifyInBackground(members: readonly Member[]): void {
    for (const member of members) {
      // A failed verification is ignored, because the engine then stays unverified and calls go to the other engines.
      if (member.isVerificationDue) member.verify().catch(() => {});
    }
  }

  private take(member: Member, { sampling, sessionId }: SlotRequest): Slot {
    const endProbe = member.breaker.begin();
    const charge = (sampling && member.limits?.begin()) || (() => {});
    if (sampling) {
      member.inflight++;
      member.adaptive?.begin(member.inflight);
      this.policy.assigned(sessionId, member);
    }
    const end = (tokens: number): void => {
      endProbe();
      charge(tokens);
      if (sampling) member.inflight--;
      this.serveWaiters();
    };
    return { member, end };
  }
}
