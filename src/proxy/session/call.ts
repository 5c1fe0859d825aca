import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import { Relay } from './relay.ts';

/** How long an engine call lives on without a client: a harness that retries on a new connection finds it still running. */
export const ABANDON_GRACE_MS = 2_000;

export type CallParts = {
  readonly completionId: string;
  readonly index: number;
  readonly arrivedMs: number;
  /** Unix ms, likewise. */
  readonly timestampMs: number;
  readonly dialect: Dialect;
  readonly request: CanonicalRequest;
};

/**
 * One generation and the requests that wait for it: usually one, more when a harness repeats itself. `outcome` resolves
 * once the completion is durable, and rejects with a FloeError when there will be none.
 */
export class Call {
  readonly parts: CallParts;
  readonly outcome: Promise<Completion>;
  completion: Completion | null = null;
  /** What is known of the reply while it is sampled; null for a request that wants it whole, and once the call has ended. */
  relay: Relay | null;
  /** Some client has the whole reply. */
  delivered = false;
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly graceMs: number;
  private waiting = 0;
  private settled = false;
  private cancelGrace: (() => void) | null = null;

  constructor(
    parts: CallParts,
    clock: Clock,
    graceMs: number,
    run: (signal: AbortSignal, relay: Relay | null) => Promise<Completion>,
  ) {
    this.parts = parts;
    this.relay = parts.request.stream ? new Relay(parts.completionId) : null;
    this.clock = clock;
    this.graceMs = graceMs;
    this.outcome = this.track(run(this.controller.signal, this.relay));
    // Whoever waits sees the failure; with nobody waiting it must not end the process.
    this.outcome.catch(() => {});
  }

  get running(): boolean {
    return !this.settled;
  }

  /** The engine call ends with this reason. A no-op once the engine has answered. */
  abort(reason: FloeError): void {
    this.controller.abort(reason);
  }

  /** A request waits. */
  attach(): void {
    this.waiting++;
    this.cancelGrace?.();
    this.cancelGrace = null;
  }

  /** A request waits no longer: it has the reply, or its client is gone. */
  detach(delivered: boolean): void {
    this.waiting--;
    if (delivered) this.delivered = true;
    if (this.waiting > 0) return;
    if (!this.settled) {
      this.cancelGrace = this.clock.schedule(this.graceMs, () =>
        this.abort(new FloeError('cancelled', 'the client went away')),
      );
    }
    this.judgeDelivery();
  }

  private async track(run: Promise<Completion>): Promise<Completion> {
    try {
      this.completion = await run;
      return this.completion;
    } finally {
      this.settled = true;
      this.relay = null;
      this.cancelGrace?.();
      this.judgeDelivery();
    }
  }

  private judgeDelivery(): void {
    if (this.completion !== null && this.waiting === 0) this.completion.undelivered = !this.delivered;
  }
}
