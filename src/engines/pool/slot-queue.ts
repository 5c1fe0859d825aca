import type { Clock } from '../../core/clock.ts';
import type { FloeError } from '../../core/errors.ts';
import type { ChoicePolicy } from './choice.ts';
import type { Member } from './member.ts';

export type SlotNeed = {
  readonly sessionId: string;
  /** Place in the queue: the call that arrived first has the lowest, and keeps it when it is tried again or continued. */
  readonly ticket: number;
  /** Takes a slot and counts as an assignment; look-ups do neither. */
  readonly sampling: boolean;
  /** Only engines that can be prompted with ids will do. */
  readonly ids: boolean;
  /** Engines that this call has tried in vain. */
  readonly tried: ReadonlySet<Member>;
};

/** A call's hold on an engine. `end`, to be called once, gives its slot back and tells the tokens that the call came to. */
export type Slot = { readonly member: Member; readonly end: (tokens: number) => void };

type Waiter = {
  readonly need: SlotNeed;
  readonly settle: (outcome: Slot | null) => void;
  readonly fail: (error: FloeError) => void;
};

/**
 * The engines of one pool, and the calls that wait for one of them, first come first served. A call goes to an engine that is ready;
 * while there is one it waits for a slot there. Only when there is none does it go to one that is passed over.
 */
export class SlotQueue {
  private readonly choice: ChoicePolicy;
  private members: readonly Member[] = [];
  private readonly clock: Clock;
  private waiters: Waiter[] = [];
  private cancelWake = (): void => {};

  constructor(choice: ChoicePolicy, clock: Clock) {
    this.choice = choice;
    this.clock = clock;
  }

  get engines(): readonly Member[] {
    return this.members;
  }

  /** How many calls wait. */
  get waiting(): number {
    return this.waiters.length;
  }

  join(member: Member): void {
    this.members = [...this.members, member];
    this.choice.joined(member);
    this.pump();
  }

  leave(members: readonly Member[]): void {
    this.members = this.members.filter((member) => !members.includes(member));
    for (const member of members) this.choice.left(member);
    // Who had nowhere else to go is told at once, however full the others are.
    this.settle(this.waiters.filter(({ need }) => this.untried(need).length === 0));
    this.pump();
  }

  /** Ends the waiting of every call with `error`. */
  refuseAll(error: FloeError): void {
    this.cancelWake();
    for (const waiter of this.waiters.splice(0)) waiter.fail(error);
  }

  /**
   * Resolves with a slot that must be ended; null: every engine that would do was tried, or there is none. The engine may have left
   * between the grant and the caller's next step. Rejects with the signal's reason, and then holds nothing.
   */
  acquire(need: SlotNeed, signal: AbortSignal): Promise<Slot | null> {
    if (signal.aborted) return Promise.reject(signal.reason);
    if (this.untried(need).length === 0) return Promise.resolve(null);
    if (!need.sampling) {
      const outcome = this.place(need);
      return Promise.resolve(outcome === 'wait' ? null : outcome);
    }
    return new Promise((resolve, reject) => {
      const stop = (): void => signal.removeEventListener('abort', onAbort);
      const waiter: Waiter = {
        need,
        settle: (outcome) => {
          stop();
          resolve(outcome);
        },
        fail: (error) => {
          stop();
          reject(error);
        },
      };
      const onAbort = (): void => {
        this.waiters = this.waiters.filter((other) => other !== waiter);
        reject(signal.reason);
      };
      signal.addEventListener('abort', onAbort, { once: true });
      this.enqueue(waiter);
      this.pump();
    });
  }

  /** Looks again at who can be served, after something has changed. */
  pump(): void {
    this.serve();
    this.cancelWake();
    if (this.waiters.length === 0) return;
    const waits = this.members.map((member) => member.limits?.waitMs() ?? 0).filter((waitMs) => waitMs > 0);
    if (waits.length > 0) this.cancelWake = this.clock.schedule(Math.min(...waits), () => this.pump());
  }

  private serve(): void {
    for (let i = 0; i < this.waiters.length; ) {
      if (this.members.length > 0 && this.members.every((member) => member.full)) return;
      const waiter = this.waiters[i] as Waiter;
      const outcome = this.place(waiter.need);
      if (outcome === 'wait') i++;
      else {
        this.waiters.splice(i, 1);
        waiter.settle(outcome);
      }
    }
  }

  private enqueue(waiter: Waiter): void {
    let at = this.waiters.length;
    while (at > 0 && (this.waiters[at - 1] as Waiter).need.ticket > waiter.need.ticket) at--;
    this.waiters.splice(at, 0, waiter);
  }

  private settle(exhausted: readonly Waiter[]): void {
    this.waiters = this.waiters.filter((waiter) => !exhausted.includes(waiter));
    for (const waiter of exhausted) waiter.settle(null);
  }

  private untried({ tried, ids }: SlotNeed): readonly Member[] {
    return this.members.filter((member) => !tried.has(member) && (!ids || member.takesIds));
  }

  private place(need: SlotNeed): Slot | null | 'wait' {
    const open = this.untried(need);
    if (open.length === 0) return null;
    const ready = open.filter((member) => member.ready);
    if (ready.length > 0) this.verifyDoubtful(open);
    const usable = ready.length > 0 ? ready : open;
    const free = need.sampling ? usable.filter((member) => !member.full) : usable;
    if (free.length === 0) return 'wait';
    return this.take(this.choice.pick(need.sessionId, free), need);
  }

  /** In passing, while others do the work: so that they come back, and nobody has to wait for it. */
  private verifyDoubtful(members: readonly Member[]): void {
    const again = (): void => this.pump();
    for (const member of members) {
      if (member.awaitsVerification) member.verify().then(again, again);
    }
  }

  private take(member: Member, need: SlotNeed): Slot {
    const endProbe = member.breaker.begin();
    const charge = (need.sampling && member.limits?.begin()) || (() => {});
    if (need.sampling) {
      member.inflight++;
      this.choice.assigned(need.sessionId, member);
    }
    const end = (tokens: number): void => {
      endProbe();
      charge(tokens);
      if (need.sampling) member.inflight--;
      this.pump();
    };
    return { member, end };
  }
}
