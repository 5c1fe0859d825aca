import { onAbort } from '../abort.ts';
import type { Clock } from '../clock.ts';

/** A time limit of a request on a Clock. `error` makes the error of a late request. */
export type RequestDeadline = { readonly clock: Clock; readonly limitMs: number; readonly error: () => Error };

/** What ends the wait for a reply. */
export type RequestLimits = {
  /** When it aborts, the request rejects with its reason. */
  readonly signal?: AbortSignal | undefined;
  readonly deadline?: RequestDeadline | undefined;
  /** Called with the error when the request was given up, because its signal aborted or it was late. It may inform the peer. */
  readonly onGivenUp?: (id: number, error: unknown) => void;
};

type Pending<Reply, Facts> = {
  readonly facts: Facts;
  readonly resolve: (reply: Reply) => void;
  readonly reject: (error: unknown) => void;
  /** Removes the listener of the signal and cancels the deadline. `null` for a request without limits. */
  release: (() => void) | null;
};

/**
 * The requests to one peer that have no reply yet, by their ids. It knows no message format: protocols with a format of their own use it as it
 * is, and {@link ./channel.ts} adds one. A request that was given up stays until its reply arrives, so that a reply to an unknown id is
 * always a fault of the peer. `Facts` is what the owner has to know about a request.
 */
export class PendingRequests<Reply, Facts = undefined> {
  private readonly requests = new Map<number, Pending<Reply, Facts>>();
  private nextId: number;
  private endError: ((facts: Facts, id: number) => unknown) | null = null;

  constructor(firstId = 1) {
    this.nextId = firstId;
  }

  /** Number of requests without a reply. */
  get size(): number {
    return this.requests.size;
  }

  /** Ids and facts of the requests without a reply, in the order of their ids. */
  *entries(): Generator<readonly [id: number, facts: Facts]> {
    for (const [id, { facts }] of this.requests) yield [id, facts];
  }

  /**
   * Adds a request, which the caller then sends with the returned id. The reply rejects with the error that was given to {@link reject} or
   * {@link end}, or when a limit ends the wait. Throws the reason of a signal that has already aborted.
   */
  add(facts: Facts, limits?: RequestLimits): { readonly id: number; readonly reply: Promise<Reply> } {
    limits?.signal?.throwIfAborted();
    const id = this.nextId++;
    const reply = new Promise<Reply>((resolve, reject) => {
      if (this.endError !== null) {
        reject(this.endError(facts, id));
        return;
      }
      const pending: Pending<Reply, Facts> = { facts, resolve, reject, release: null };
      this.requests.set(id, pending);
      if (limits !== undefined) limit(id, pending, limits);
    });
    return { id, reply };
  }

  /** Returns the facts of a request; undefined when no request with this id waits for a reply. */
  find(id: number): Facts | undefined {
    return this.requests.get(id)?.facts;
  }

  /** Resolves a request. Returns false when no request with this id waits for a reply. */
  resolve(id: number, reply: Reply): boolean {
    const pending = this.take(id);
    pending?.resolve(reply);
    return pending !== undefined;
  }

  /** Rejects a request. Returns false when no request with this id waits for a reply. */
  reject(id: number, error: unknown): boolean {
    const pending = this.take(id);
    pending?.reject(error);
    return pending !== undefined;
  }

  /** Rejects all requests, also requests that are added later, because the peer has ended. Only the first call has an effect. */
  end(errorOf: (facts: Facts, id: number) => unknown): void {
    if (this.endError !== null) return;
    this.endError = errorOf;
    for (const [id, { facts, reject, release }] of this.requests) {
      release?.();
      reject(errorOf(facts, id));
    }
    this.requests.clear();
  }

  private take(id: number): Pending<Reply, Facts> | undefined {
    const pending = this.requests.get(id);
    if (pending === undefined) return undefined;
    this.requests.delete(id);
    pending.release?.();
    return pending;
  }
}

function limit<Reply, Facts>(
  id: number,
  pending: Pending<Reply, Facts>,
  { signal, deadline, onGivenUp }: RequestLimits,
): void {
  let unlisten = (): void => {};
  let cancel = (): void => {};
  pending.release = () => {
    cancel();
    unlisten();
  };
  const giveUp = (error: unknown): void => {
    pending.release?.();
    pending.release = null;
    pending.reject(error);
    onGivenUp?.(id, error);
  };
  if (deadline !== undefined) cancel = deadline.clock.schedule(deadline.limitMs, () => giveUp(deadline.error()));
  unlisten = onAbort(signal, () => giveUp(signal?.reason));
}
