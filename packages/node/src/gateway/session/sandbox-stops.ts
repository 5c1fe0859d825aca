import { type Clock, sleep } from '@floe-rl/core';

/**
 * Maximum time in milliseconds to wait for the end of a sandbox. After this time it counts as leaked, because a failing disk or an unkillable
 * process must keep neither a session nor the node from ending.
 */
const MAX_STOP_MS = 30_000;

/** Resolves when `stopped` has settled. Calls `onLate` and resolves when it takes longer than {@link MAX_STOP_MS}. */
export async function endInTime(clock: Clock, stopped: Promise<unknown>, onLate: () => void): Promise<void> {
  const settled = new AbortController();
  const all = stopped.then(
    () => settled.abort(),
    () => settled.abort(),
  );
  await Promise.race([all, sleep(clock, MAX_STOP_MS, settled.signal).then(onLate, () => undefined)]);
}

export type SandboxStopLimits = {
  /** Maximum number of sessions whose sandboxes are ended after their results were delivered; 0 for none. */
  readonly maxCount: number;
  /** Maximum memory in MiB that these sandboxes may use together. */
  readonly maxMb: number;
};

/** The sandboxes of one session that are being ended. */
export type SandboxStop = {
  readonly names: readonly string[];
  /** Memory in MiB that the sandboxes may use. */
  readonly memoryMb: number;
  /** Settles when the sandboxes have ended. */
  readonly ended: Promise<void>;
};

/** Lets sessions end before their sandboxes have, within limits. */
export class SandboxStops {
  private readonly limits: SandboxStopLimits;
  private readonly running = new Set<SandboxStop>();

  constructor(limits: SandboxStopLimits) {
    this.limits = limits;
  }

  /** Names of the sandboxes whose sessions have not waited for their end. */
  get sandboxes(): string[] {
    return [...this.running].flatMap(({ names }) => names);
  }

  /**
   * Resolves at once when a session need not wait for the end of its sandboxes. When too many others are being ended, resolves when the
   * session's sandboxes have ended. Never rejects.
   */
  async await(stop: SandboxStop): Promise<void> {
    const { maxCount, maxMb } = this.limits;
    const ended = stop.ended.catch(() => {});
    const usedMb = [...this.running].reduce((sum, { memoryMb }) => sum + memoryMb, stop.memoryMb);
    if (this.running.size >= maxCount || usedMb > maxMb) return ended;
    this.running.add(stop);
    void ended.then(() => this.running.delete(stop));
  }

  /** Waits until all sandboxes have ended. */
  async close(): Promise<void> {
    while (this.running.size > 0) await Promise.allSettled([...this.running].map(({ ended }) => ended));
  }
}
