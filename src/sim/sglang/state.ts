import { FloeError } from '../../core/errors.ts';
import type { SimContext } from '../context.ts';
import { SglangMetrics } from './metrics.ts';

/**
 * How generation is paused. `abort` ends what runs; `retract` puts it back into the queue without its cache; `in_place`
 * freezes it with its cache.
 */
export const PAUSE_MODES = ['abort', 'retract', 'in_place'] as const;
export type PauseMode = (typeof PAUSE_MODES)[number];

/** What SGLang's routes share beyond the context of every face. */
export class SglangState {
  readonly context: SimContext;
  readonly metrics: SglangMetrics;
  private readonly live = new Set<string>();
  private pausedBy: PauseMode | null = null;
  private held: ReadonlySet<string> = new Set();
  private timesRetracted = 0;
  private updating = false;
  private lastUpdate: Promise<unknown> = Promise.resolve();

  constructor(context: SimContext) {
    this.context = context;
    this.metrics = new SglangMetrics(context.config.model, context.engine);
  }

  /** How often running calls have been put back into the queue. */
  get retractions(): number {
    return this.timesRetracted;
  }

  /** Calls that a pause holds in the middle of their replies. What came after the pause has not reached the engine. */
  get heldCalls(): number {
    return [...this.held].filter((rid) => this.live.has(rid)).length;
  }

  /** Whether calls hold cache, so that it cannot be flushed. */
  get busy(): boolean {
    if (this.pausedBy === null) return !this.updating && this.live.size > 0;
    return this.pausedBy === 'in_place' && this.heldCalls > 0;
  }

  /** Does `work` as the call `rid`. Throws `engine_rejected` when a call of this id is under way. */
  async track<T>(rid: string, work: () => Promise<T>): Promise<T> {
    if (this.live.has(rid)) throw new FloeError('engine_rejected', `Duplicate request ID detected: ${rid}`);
    this.live.add(rid);
    try {
      return await work();
    } finally {
      this.live.delete(rid);
    }
  }

  /** Aborts every call whose id begins with `prefix`. An empty one matches nothing. */
  abort(prefix: string): void {
    if (prefix !== '') this.context.engine.abort([...this.live].filter((rid) => rid.startsWith(prefix)));
  }

  async pause(mode: PauseMode): Promise<void> {
    const { engine } = this.context;
    if (this.pausedBy === null) this.held = new Set(this.live);
    this.pausedBy = mode;
    if (mode === 'retract') {
      this.timesRetracted++;
      this.metrics.retractedAll(this.heldCalls);
    }
    await engine.pause(mode === 'abort' ? 'abort' : 'keep');
  }

  resume(): void {
    this.pausedBy = null;
    this.held = new Set();
    if (!this.updating) this.context.engine.resume();
  }

  /**
   * Does `work` while nothing is sampled: at once when paused, else when the calls under way have ended; others wait. One
   * after the other.
   */
  exclusively<T>(work: () => T): Promise<T> {
    const turn = this.lastUpdate.then(() => this.whileQuiet(work));
    this.lastUpdate = turn.catch(() => {});
    return turn;
  }

  private async whileQuiet<T>(work: () => T): Promise<T> {
    const { engine } = this.context;
    if (this.pausedBy !== null) return work();
    this.updating = true;
    try {
      await engine.pause('wait');
      return work();
    } finally {
      this.updating = false;
      // Someone may have paused meanwhile; then it stays so.
      if (this.pausedBy === null) engine.resume();
    }
  }
}
