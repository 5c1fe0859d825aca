import type { Clock } from '../../core/clock.ts';
import { fairShares } from '../../core/fair-shares.ts';
import type { SessionRow, StoreTables, TrainerLoad } from '../../store/index.ts';
import type { RolloutConfig } from '../config.ts';
import { StageMeans } from './stage-means.ts';

/**
 * Interval at which the loads of the trainers are read from the store. The results of sessions that end within it may exceed a trainer's
 * limit.
 */
const LOADS_INTERVAL_MS = 1_000;
/**
 * Reading the loads takes long when many results are uncollected. The interval to the next read is then this many times the duration of
 * the last one, so that reading takes at most 1/20 of the time.
 */
const LOADS_TIME_FACTOR = 20;

/** Interval at which the mean of all durations is read. Computing it reads one row for each duration key. */
const MEAN_INTERVAL_MS = 10_000;

/** The part of a node's claim that is the same for every trainer. */
export type NodeClaim = {
  readonly nodeId: string;
  readonly slots: number;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

/** Why no session of a trainer is leased: the name of the configured limit that is reached, and a sentence that explains it. */
export type HoldBack = { readonly limit: string; readonly why: string };

/**
 * The claimed sessions. `isHeldBack` is whether there are fewer than requested because a trainer with queued sessions does not collect its
 * results.
 */
export type ScheduledClaim = { readonly rows: readonly SessionRow[]; readonly isHeldBack: boolean };

/**
 * Decides of which trainers' sessions a node gets how many. It keeps only estimates, so servers that share a store need not agree on them.
 */
export class Scheduling {
  private readonly config: RolloutConfig;
  private readonly clock: Clock;
  private loads = new Map<string, TrainerLoad>();
  private nextLoadsMs = Number.NEGATIVE_INFINITY;
  private meanMs: number | null = null;
  private nextMeanMs = Number.NEGATIVE_INFINITY;
  readonly stages = new StageMeans();

  constructor(config: RolloutConfig, clock: Clock) {
    this.config = config;
    this.clock = clock;
  }

  /** Claims up to `slots` sessions, shared fairly among the trainers that have queued sessions which may be leased now. */
  async claim(tables: StoreTables, claim: NodeClaim): Promise<ScheduledClaim> {
    const waiting = await tables.sessions.waitingTrainers(claim.nowMs);
    if (waiting.length === 0) return { rows: [], isHeldBack: false };
    await this.refreshLoads(tables);
    let trainers = waiting.filter((trainer) => this.holdBack(this.loadOf(trainer)) === null);
    const isHeldBack = trainers.length < waiting.length;
    const rows: SessionRow[] = [];
    while (rows.length < claim.slots && trainers.length > 0) {
      const exhausted = new Set<string>();
      for (const [trainer, share] of this.shares(claim.slots - rows.length, trainers)) {
        const claimed = await this.claimFrom(tables, trainer, { ...claim, slots: share });
        this.addLive(trainer, claimed.length);
        rows.push(...claimed);
        if (claimed.length < share) exhausted.add(trainer);
      }
      // Trainers that had fewer sessions than their share are removed, and their remaining slots go to the other trainers.
      trainers = trainers.filter((trainer) => !exhausted.has(trainer));
    }
    return { rows, isHeldBack: isHeldBack && rows.length < claim.slots };
  }

  /** Returns why a trainer's sessions are not leased; `null` when they are. */
  holdBack(load: TrainerLoad): HoldBack | null {
    for (const what of ['uncollected_results', 'uncollected_bytes'] as const) {
      const limit = `max_${what}` as const;
      const most = this.config[limit];
      if (load[what] >= most) return { limit, why: `it has ${load[what]} ${what}, and ${limit} is ${most}` };
    }
    return null;
  }

  /**
   * Returns the mean duration of all sessions in milliseconds; `null` when no duration is stored yet. The value changes slowly, so it is
   * cached.
   */
  async overallMeanMs(tables: StoreTables): Promise<number | null> {
    const nowMs = this.clock.monotonicMs();
    if (nowMs >= this.nextMeanMs) {
      this.nextMeanMs = nowMs + MEAN_INTERVAL_MS;
      this.meanMs = await tables.durations.overallMean();
    }
    return this.meanMs;
  }

  private async claimFrom(tables: StoreTables, trainer: string, claim: NodeClaim): Promise<SessionRow[]> {
    const { queue_order: order } = this.config;
    const { slots: limit, ...rest } = claim;
    if (order === 'fifo') return tables.sessions.claim({ ...rest, limit, trainer, order });
    const first = await tables.sessions.claim({ ...rest, limit, trainer, order: 'overdue' });
    if (first.length === limit) return first;
    return [...first, ...(await tables.sessions.claim({ ...rest, limit: limit - first.length, trainer, order }))];
  }

  private shares(slots: number, trainers: readonly string[]): ReadonlyMap<string, number> {
    return fairShares(
      slots,
      trainers.map((trainer) => ({
        trainer,
        live: this.loadOf(trainer).live,
        weight: this.config.trainer_weights[trainer] ?? 1,
      })),
    );
  }

  private loadOf(trainer: string): TrainerLoad {
    return this.loads.get(trainer) ?? { trainer, queued: 0, live: 0, uncollected_results: 0, uncollected_bytes: 0 };
  }

  /** Counts claimed sessions as live until the loads are next read. When the transaction fails, the estimate is too high until then. */
  private addLive(trainer: string, count: number): void {
    const load = this.loadOf(trainer);
    this.loads.set(trainer, { ...load, live: load.live + count });
  }

  private async refreshLoads(tables: StoreTables): Promise<void> {
    const startedMs = this.clock.monotonicMs();
    if (startedMs < this.nextLoadsMs) return;
    // The next time is set before the read, so that concurrent claims use the loads in memory instead of reading them as well.
    this.nextLoadsMs = startedMs + LOADS_INTERVAL_MS;
    const loads = await tables.sessions.loads();
    this.loads = new Map(loads.map((load) => [load.trainer, load]));
    const endedMs = this.clock.monotonicMs();
    this.nextLoadsMs = endedMs + Math.max(LOADS_INTERVAL_MS, LOADS_TIME_FACTOR * (endedMs - startedMs));
  }
}
