import { FloeError } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import { SglangMetrics } from '../metrics.ts';

/**
 * How running calls are paused: `abort` ends them, `retract` puts them back into the queue without their cache, and `in_place` freezes them
 * with their cache.
 */
export const PAUSE_MODES = ['abort', 'retract', 'in_place'] as const;
type PauseMode = (typeof PAUSE_MODES)[number];

/** The state that SGLang's routes share in addition to {@link SimContext}. */
export class SglangState {
  readonly context: SimContext;
  readonly metrics: SglangMetrics;
  /** Request ids of the calls in progress. */
  private readonly inProgress = new Set<string>();
  private pausedBy: PauseMode | null = null;
  private pausedCalls: ReadonlySet<string> = new Set();
  private retractionCount = 0;
  private isUpdating = false;
  private lastUpdate: Promise<unknown> = Promise.resolve();

  constructor(context: SimContext) {
    this.context = context;
    this.metrics = new SglangMetrics(context.config.model, context.engine);
  }

  /** Number of pauses so far that put the running calls back into the queue (mode `retract`). */
  get retractions(): number {
    return this.retractionCount;
  }

  /** Number of calls in progress that began before the current pause. Calls that arrive during the pause do not count. */
  get pausedCallCount(): number {
    return [...this.pausedCalls].filter((rid) => this.inProgress.has(rid)).length;
  }

  /** Whether calls in progress use the prefix cache, so that it cannot be flushed. */
  get holdsCache(): boolean {
    if (this.pausedBy === null) return !this.isUpdating && this.inProgress.size > 0;
    return this.pausedBy === 'in_place' && this.pausedCallCount > 0;
  }

  /** Runs `work` as the call with request id `rid`. Throws `engine_rejected` when a call with this id is in progress. */
  async track<T>(rid: string, work: () => Promise<T>): Promise<T> {
    if (this.inProgress.has(rid)) throw new FloeError('engine_rejected', `Duplicate request ID detected: ${rid}`);
    this.inProgress.add(rid);
    try {
      return await work();
    } finally {
      this.inProgress.delete(rid);
    }
  }

  /** Aborts every call whose id begins with `prefix`. An empty prefix matches none. */
  abort(prefix: string): void {
    if (prefix !== '') this.context.engine.abort([...this.inProgress].filter((rid) => rid.startsWith(prefix)));
  }

  /** Pauses generation. With mode `abort`, resolves when all aborted calls have ended. */
  async pause(mode: PauseMode): Promise<void> {
    const { engine } = this.context;
    if (this.pausedBy === null) this.pausedCalls = new Set(this.inProgress);
    this.pausedBy = mode;
    if (mode === 'retract') {
      this.retractionCount++;
      this.metrics.countRetractions(this.pausedCallCount);
    }
    await engine.pause(mode === 'abort' ? 'abort' : 'keep');
  }

  resume(): void {
    this.pausedBy = null;
    this.pausedCalls = new Set();
    if (!this.isUpdating) this.context.engine.resume();
  }

  /**
   * Runs `work` while no call is being sampled. During a pause, `work` runs immediately. Otherwise it runs when the calls in progress have
   * ended, while new calls wait. Concurrent invocations run one after another.
   */
  exclusively<T>(work: () => T): Promise<T> {
    const update = this.lastUpdate.then(() => this.whileIdle(work));
    this.lastUpdate = update.catch(() => {});
    return update;
  }

  private async whileIdle<T>(work: () => T): Promise<T> {
    const { engine } = this.context;
    if (this.pausedBy !== null) return work();
    this.isUpdating = true;
    try {
      await engine.pause('wait');
      return work();
    } finally {
      this.isUpdating = false;
      // A pause that was requested during the update stays in effect.
      if (this.pausedBy === null) engine.resume();
    }
  }
}
