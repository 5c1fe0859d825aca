import type { Clock } from '../../core/clock.ts';
import { fairShares } from '../../core/fair-shares.ts';
import type { SessionRow, StoreTables, TrainerLoad } from '../../store/index.ts';
import type { RolloutConfig } from '../config.ts';
import { StageMeans } from './stage-means.ts';

/** What trainers have under way is looked at this often: a limit holds to within what ends in a second. */
const LOOK_EVERY_MS = 1_000;
/** A look that takes long, because much is uncollected, comes less often: it may cost a twentieth of the time. */
const LOOK_SHARE = 20;

/** The mean of all durations is over as many rows as there are keys. */
const MEAN_EVERY_MS = 10_000;

/** Whom a claim is for, and what of it all trainers have in common. */
export type Ask = {
  readonly nodeId: string;
  readonly slots: number;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

/** Why no session of a trainer is handed out, and the limit that says so. */
export type HeldBack = { readonly limit: string; readonly why: string };

/** What a claim got. `heldBack`: there would have been more, but its trainer does not collect. */
export type Taken = { readonly rows: readonly SessionRow[]; readonly heldBack: boolean };

/** Decides whose sessions a node gets. It remembers estimates only: several servers on one store need not agree on them. */
export class Scheduling {
  private readonly config: RolloutConfig;
  private readonly clock: Clock;
  private loads = new Map<string, TrainerLoad>();
  private lookAgainMs = Number.NEGATIVE_INFINITY;
  private meanMs: number | null = null;
  private meanAgainMs = Number.NEGATIVE_INFINITY;
  readonly stages = new StageMeans();

  constructor(config: RolloutConfig, clock: Clock) {
    this.config = config;
    this.clock = clock;
  }

  /** Claims up to `slots` sessions, shared fairly among the trainers whose sessions wait. */
  async take(tables: StoreTables, ask: Ask): Promise<Taken> {
    const waiting = await tables.sessions.waitingTrainers(ask.nowMs);
    if (waiting.length === 0) return { rows: [], heldBack: false };
    await this.look(tables);
    let trainers = waiting.filter((trainer) => this.heldBack(this.loadOf(trainer)) === null);
    const heldBack = trainers.length < waiting.length;
    const rows: SessionRow[] = [];
    while (rows.length < ask.slots && trainers.length > 0) {
      const dry = new Set<string>();
      for (const [trainer, share] of this.shares(ask.slots - rows.length, trainers)) {
        const taken = await this.takeFrom(tables, trainer, { ...ask, slots: share });
        this.addLive(trainer, taken.length);
        rows.push(...taken);
        if (taken.length < share) dry.add(trainer);
      }
      // What one of them had no sessions for goes to the others.
      trainers = trainers.filter((trainer) => !dry.has(trainer));
    }
    return { rows, heldBack: heldBack && rows.length < ask.slots };
  }

  /** Null: its sessions are handed out. */
  heldBack(load: TrainerLoad): HeldBack | null {
    for (const what of ['uncollected_results', 'uncollected_bytes'] as const) {
      const limit = `max_${what}` as const;
      const most = this.config[limit];
      if (load[what] >= most) return { limit, why: `it has ${load[what]} ${what}, and ${limit} is ${most}` };
    }
    return null;
  }

  /** Over all keys of durations, which changes slowly: it is looked up now and then. */
  async overallMeanMs(tables: StoreTables): Promise<number | null> {
    const nowMs = this.clock.monotonicMs();
    if (nowMs >= this.meanAgainMs) {
      this.meanAgainMs = nowMs + MEAN_EVERY_MS;
      this.meanMs = await tables.durations.overallMean();
    }
    return this.meanMs;
  }

  private async takeFrom(tables: StoreTables, trainer: string, ask: Ask): Promise<SessionRow[]> {
    const { queue_order: order } = this.config;
    const { slots: limit, ...rest } = ask;
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

  /** Until the next look. Should the transaction fail, the trainer is thought to have a little more than it has. */
  private addLive(trainer: string, count: number): void {
    const load = this.loadOf(trainer);
    this.loads.set(trainer, { ...load, live: load.live + count });
  }

  private async look(tables: StoreTables): Promise<void> {
    const startedMs = this.clock.monotonicMs();
    if (startedMs < this.lookAgainMs) return;
    // Others that claim meanwhile go by what is known.
    this.lookAgainMs = startedMs + LOOK_EVERY_MS;
    const loads = await tables.sessions.loads();
    this.loads = new Map(loads.map((load) => [load.trainer, load]));
    const endedMs = this.clock.monotonicMs();
    this.lookAgainMs = endedMs + Math.max(LOOK_EVERY_MS, LOOK_SHARE * (endedMs - startedMs));
  }
}
