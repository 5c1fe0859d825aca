import { FloeError } from '../../core/errors.ts';
import type { SimEngine } from '../engine.ts';
import type { WeightStore } from '../weights.ts';

/** What memory is given up in sleep and taken back by name. */
const PARTS = ['weights', 'kv_cache'] as const;

/** Sleep mode: an engine without its memory samples nothing. */
export class Sleep {
  /** Whether the engine was paused by itself, so that waking up does not resume it. */
  paused = false;
  private readonly engine: SimEngine;
  private readonly weights: WeightStore;
  private missing: ReadonlySet<string> = new Set();

  constructor(engine: SimEngine, weights: WeightStore) {
    this.engine = engine;
    this.weights = weights;
  }

  get asleep(): boolean {
    return this.missing.size > 0;
  }

  /** With `losesWeights`, others are in effect from then on until an update, while the old version goes on being told. */
  async fallAsleep(losesWeights: boolean, mode: 'abort' | 'wait' | 'keep'): Promise<void> {
    await this.engine.pause(mode);
    this.engine.cache.clear();
    if (losesWeights) this.weights.swap();
    this.missing = new Set(PARTS);
  }

  /** Takes parts back, all when none is named; sampling goes on with the last. Throws `bad_request` for an unknown part. */
  wake(parts: readonly string[]): void {
    const unknown = parts.find((part) => !PARTS.some((known) => known === part));
    if (unknown !== undefined) {
      throw new FloeError('bad_request', `tags must be among ${PARTS.join(', ')}, not ${unknown}`);
    }
    const back = parts.length === 0 ? PARTS : parts;
    this.missing = new Set([...this.missing].filter((part) => !back.includes(part)));
    if (!this.asleep && !this.paused) this.engine.resume();
  }
}
