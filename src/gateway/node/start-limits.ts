import { Semaphore } from '../../core/semaphore.ts';
import type { RuntimeBackend } from '../../schema/index.ts';

/** Starts of one back end. `limit` null: any number at a time. */
export type StartCount = {
  readonly starting: number;
  readonly waiting: number;
  readonly limit: number | null;
};

/**
 * How many sandboxes of a back end may be starting at a time. Apart from the INIT workers, which also prepare: what a container engine
 * or a shared disk bears at once has nothing to do with how many preparations do.
 */
export class StartLimits {
  private readonly turns = new Map<RuntimeBackend, Semaphore>();
  private readonly starting = new Map<RuntimeBackend, number>();

  constructor(limits: Partial<Record<RuntimeBackend, number>>) {
    for (const [backend, limit] of Object.entries(limits)) {
      this.turns.set(backend as RuntimeBackend, new Semaphore(limit));
    }
  }

  /** Waits for a turn, first come first served. The returned function ends it and is safe to call twice. Rejects with the signal's reason. */
  async acquire(backend: RuntimeBackend, signal: AbortSignal): Promise<() => void> {
    const release = (await this.turns.get(backend)?.acquire(signal)) ?? (() => {});
    if (signal.aborted) {
      release();
      throw signal.reason;
    }
    this.count(backend, 1);
    let ended = false;
    return () => {
      if (ended) return;
      ended = true;
      this.count(backend, -1);
      release();
    };
  }

  counts(): ReadonlyMap<RuntimeBackend, StartCount> {
    const backends = new Set([...this.turns.keys(), ...this.starting.keys()]);
    return new Map(
      [...backends].map((backend) => {
        const turns = this.turns.get(backend);
        const starting = this.starting.get(backend) ?? 0;
        return [backend, { starting, waiting: turns?.waiting ?? 0, limit: turns?.size ?? null }];
      }),
    );
  }

  private count(backend: RuntimeBackend, change: number): void {
    this.starting.set(backend, (this.starting.get(backend) ?? 0) + change);
  }
}
