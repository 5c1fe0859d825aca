import type { AdaptiveConcurrency, EngineInfo } from '@floe-rl/core/schema';
import type { EngineLoad } from './engine-load.ts';

/** The limit at the start, unless the bounds require another one. */
const START_LIMIT = 16;
/** Growth factor of the limit with each reading, until the engine is overloaded for the first time. */
const START_FACTOR = 1.5;
/** The limit is multiplied by this factor when the engine is overloaded. */
const DECREASE_FACTOR = 0.8;
/** After an overload, the limit grows by this share of its value before that overload, with each reading. */
const INCREASE_SHARE = 1 / 20;
/** Share of the KV cache in use above which the limit does not grow, because running replies need more of it with each token. */
const FULL_KV_SHARE = 0.9;
/** The engine is overloaded when, at two readings in a row, more requests wait than this share of the running requests, plus one. */
const QUEUE_SHARE = 0.1;
/** The engine is overloaded when it has preempted more than this share of the running requests since the last reading. */
const PREEMPTED_SHARE = 0.05;
/** Number of waiting requests that are no queue, because they may have arrived since the last step of the engine. */
const ARRIVALS = 1;
/** Number of readings after a decrease that cause none, because replies that were running then still use the cache. */
const SETTLING_READINGS = 2;
/** The limit grows only while at least this share of it is used. Otherwise it says nothing about what the engine can do. */
const USED_SHARE = 0.9;

type AdaptiveState = NonNullable<EngineInfo['adaptive']>;

/**
 * Limits the concurrent calls of an engine by its load: additive increase while the engine copes, multiplicative decrease when it preempts
 * requests or they queue. The limit always stays within its bounds, whatever the engine reports.
 */
export class AdaptiveLimit {
  private readonly bounds: AdaptiveConcurrency;
  private current: number;
  /** Amount that the limit grows by with each reading; `null` before the first overload. */
  private step: number | null = null;
  private load: EngineLoad | null = null;
  private preemptions: number | null = null;
  private hadQueue = false;
  private settling = 0;
  private unreadable = 0;
  private decreases = 0;
  /** Highest number of calls in flight since the last reading. */
  private peak = 0;

  constructor(bounds: AdaptiveConcurrency) {
    this.bounds = bounds;
    this.current = clamp(START_LIMIT, bounds);
  }

  /** Most concurrent calls at present. */
  get limit(): number {
    return this.current;
  }

  /** Records the number of calls in flight at the start of a call. */
  begin(inflight: number): void {
    this.peak = Math.max(this.peak, inflight);
  }

  /**
   * Adjusts the limit to a reading of the engine's load; `null` when the engine could not be read. A value that is missing counts neither
   * for nor against the engine. `inflight` is the present number of calls in flight.
   */
  observe(load: EngineLoad | null, inflight: number): void {
    const peak = Math.max(this.peak, inflight);
    this.peak = inflight;
    if (load === null || Object.values(load).every((value) => value === null)) {
      this.unreadable++;
      return;
    }
    this.load = load;
    const isPreempting = this.newPreemptions(load) > PREEMPTED_SHARE * (load.running ?? 0);
    const hasQueue = (load.waiting ?? 0) > ARRIVALS + QUEUE_SHARE * (load.running ?? Number.POSITIVE_INFINITY);
    const isQueueing = hasQueue && this.hadQueue;
    this.hadQueue = hasQueue;
    if (this.settling > 0) this.settling--;
    else if (isPreempting || isQueueing) this.decrease(peak);
    else if (!hasQueue && (load.kvUsage ?? 0) < FULL_KV_SHARE && peak >= USED_SHARE * this.current) this.increase();
  }

  state(): AdaptiveState {
    const { kvUsage = null, waiting = null, preemptions = null } = this.load ?? {};
    return {
      limit: this.current,
      decreases: this.decreases,
      kv_usage: kvUsage,
      waiting,
      preemptions,
      unreadable: this.unreadable,
    };
  }

  /** Returns the number of preemptions since the last reading. A counter that became smaller belongs to a restarted engine. */
  private newPreemptions({ preemptions }: EngineLoad): number {
    if (preemptions === null) return 0;
    const before = this.preemptions ?? preemptions;
    this.preemptions = preemptions;
    return Math.max(0, preemptions - before);
  }

  private increase(): void {
    const next = this.step === null ? Math.ceil(this.current * START_FACTOR) : this.current + this.step;
    this.current = clamp(next, this.bounds);
  }

  private decrease(peak: number): void {
    this.step = Math.max(1, Math.round(this.current * INCREASE_SHARE));
    const used = Math.min(this.current, Math.max(1, peak));
    this.current = clamp(Math.floor(used * DECREASE_FACTOR), this.bounds);
    this.settling = SETTLING_READINGS;
    this.decreases++;
  }
}

function clamp(limit: number, { min, max }: AdaptiveConcurrency): number {
  return Math.min(max, Math.max(min, limit));
}
