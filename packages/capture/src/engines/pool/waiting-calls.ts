import type { FloeError } from '@floe-rl/core';
import type { CallContext } from '../engine.ts';

/** A call that has failed on an engine and waits. The object identifies the call. */
type FailedCall = { readonly context: CallContext };

/** The calls of all pools that wait: for the end of a pause, for a slot, for their retry, or for an engine to be registered. */
export class WaitingCalls {
  /** Number of calls that wait for the end of a pause or for a slot, keyed by session id. */
  private readonly counts = new Map<string, number>();
  /** The last failure of each call that failed on an engine and now waits, either for its retry or for an engine to be registered. */
  private readonly failures = new Map<FailedCall, FloeError>();

  /** Whether a call of the session waits for the end of a pause, for a free slot, or for a rate limit. */
  isWaiting(sessionId: string): boolean {
    return this.counts.has(sessionId);
  }

  /** Returns the last failure of the call with this completion id, as `EnginePools.failureOf` describes. */
  failureOf(completionId: string): FloeError | null {
    for (const [call, failure] of this.failures) if (call.context.completionId === completionId) return failure;
    return null;
  }

  /** Records the failure after which the call now waits. */
  failed(call: FailedCall, failure: FloeError): void {
    this.failures.set(call, failure);
  }

  /** Forgets the failure of a call that is sent to an engine again, or has ended. */
  forgetFailure(call: FailedCall): void {
    this.failures.delete(call);
  }

  /** Counts a call as one of its session's waiting calls while `wait` runs. */
  async during<T>({ sessionId }: CallContext, wait: () => Promise<T>): Promise<T> {
    this.counts.set(sessionId, (this.counts.get(sessionId) ?? 0) + 1);
    try {
      return await wait();
    } finally {
      const others = (this.counts.get(sessionId) ?? 1) - 1;
      if (others === 0) this.counts.delete(sessionId);
      else this.counts.set(sessionId, others);
    }
  }
}
