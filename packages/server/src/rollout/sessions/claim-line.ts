import type { RolloutContext } from '../context.ts';
import type { Claim, ClaimedSession } from './claim.ts';

/** Interval at which one held request checks the queue, because the announcement of another server may have been lost. */
const POLL_INTERVAL_MS = 1_000;
/** Maximum number of held requests that this server calls to claim sessions at the same time, after a change of the queue or a poll. */
const MAX_CLAIMING = 8;
/**
 * After this many held requests in a row without a session for their own node, for instance because the node is full, no further request is
 * called. The next change or poll continues with the other requests.
 */
const MAX_FRUITLESS = 32;

const NO_SESSION: Claim = { claimed: [], isQueueEmpty: false };

/** The place of a held request in the line. `isCalled` is true from its call until its claim begins. */
type Place = { isCalled: boolean; readonly wake: () => void };

/**
 * The lease requests that this server holds open because it had no session for them, in order of arrival. A change of the queue calls the
 * first request. A called request that has then claimed sessions calls two more; a called request that has found the queue empty calls none.
 * The cost of a change is therefore proportional to the work in the queue, not to the number of idle nodes.
 */
export class ClaimLine {
  private readonly context: RolloutContext;
  private readonly places = new Set<Place>();
  /** Number of called requests whose claims have not ended. */
  private claiming = 0;
  /** Number of called requests in a row that found no session although the queue was not empty. */
  private fruitless = 0;
  /** Whether a call was skipped because {@link MAX_CLAIMING} requests were claiming. */
  private isCallDue = false;
  private cancelPoll: (() => void) | null = null;

  constructor(context: RolloutContext) {
    this.context = context;
    context.wakeups.follow('queue', () => this.startCalls());
  }

  /**
   * Calls `claim` immediately. Calls it again each time that this request is called and each time that the node may hold more sessions than
   * before. Stops when `claim` returns sessions, `waitMs` has passed, `disconnected` is aborted, or the server closes. Resolves to the claimed
   * sessions. Rejects as `claim` does.
   */
  async claim(
    nodeId: string,
    waitMs: number,
    disconnected: AbortSignal,
    claim: () => Promise<Claim>,
  ): Promise<readonly ClaimedSession[]> {
    const { clock, wakeups, closing } = this.context;
    const deadlineMs = clock.monotonicMs() + waitMs;
    for (let isTurn = false; ; ) {
      // The request joins the line before the claim, so that a change between the claim and the wait is not missed.
      const wait = wakeups.arm([`capacity:${nodeId}`], disconnected);
      const place: Place = { isCalled: false, wake: wait.wake };
      this.join(place);
      try {
        // A request whose client has closed the connection must not claim sessions, because the leases could not be sent.
        const isOver = disconnected.aborted || closing.aborted;
        const { claimed } = await this.claimNow(isTurn, isOver ? async () => NO_SESSION : claim);
        isTurn = false;
        const leftMs = deadlineMs - clock.monotonicMs();
        if (claimed.length > 0 || isOver || leftMs <= 0 || !(await wait.atMost(leftMs))) return claimed;
        isTurn = place.isCalled;
        place.isCalled = false;
      } finally {
        wait.disarm();
        this.leave(place);
      }
    }
  }

  private async claimNow(isTurn: boolean, claim: () => Promise<Claim>): Promise<Claim> {
    let result = NO_SESSION;
    try {
      result = await claim();
      return result;
    } finally {
      if (isTurn) this.endTurn(result);
    }
  }

  private join(place: Place): void {
    this.places.add(place);
    this.cancelPoll ??= this.context.clock.schedule(POLL_INTERVAL_MS, () => {
      this.cancelPoll = null;
      this.startCalls();
    });
  }

  private leave(place: Place): void {
    this.places.delete(place);
    // The request ends without having used its call, so the next request is called.
    if (place.isCalled) this.endTurn(NO_SESSION);
    if (this.places.size > 0) return;
    this.cancelPoll?.();
    this.cancelPoll = null;
  }

  private startCalls(): void {
    this.fruitless = 0;
    this.callFirst();
  }

  private callFirst(): void {
    if (this.claiming >= MAX_CLAIMING) {
      this.isCallDue = true;
      return;
    }
    const [first] = this.places;
    if (first === undefined) return;
    this.places.delete(first);
    this.claiming++;
    first.isCalled = true;
    first.wake();
  }

  private endTurn({ claimed, isQueueEmpty }: Claim): void {
    this.claiming--;
    if (claimed.length > 0) {
      this.fruitless = 0;
      this.callFirst();
      this.callFirst();
    } else if (!isQueueEmpty && ++this.fruitless < MAX_FRUITLESS) this.callFirst();
    if (!this.isCallDue) return;
    this.isCallDue = false;
    this.callFirst();
  }
}
