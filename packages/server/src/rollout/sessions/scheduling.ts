import type { Clock } from '@floe-rl/core';
import type { ClaimRequest, NodeMemory, SessionRow, StoreTables, TrainerLoad } from '../../store/index.ts';
import type { RolloutConfig } from '../config.ts';
import { fairShares } from './fair-shares.ts';
import { StageMeans } from './stage-means.ts';

/**
 * Interval at which each trainer's numbers of live sessions and uncollected results are read from the store. Results that arrive within the
 * interval may exceed a trainer's limit.
 */
const LOADS_INTERVAL_MS = 1_000;
/**
 * Reading the trainers' loads takes long when many results are uncollected or many sessions are queued. The interval until the next read
 * is at least this many times the duration of the last read, so that reading takes at most 1/20 of the time.
 */
const LOADS_TIME_FACTOR = 20;

/** Interval in milliseconds at which the mean duration of all sessions is read. Reading it scans a whole table. */
const MEAN_INTERVAL_MS = 10_000;

/**
 * The queue is short when it has fewer sessions than this share of the leased sessions. With a half, the sessions that are in READY by then
 * still run before the last sessions of the queue.
 */
const SHORT_QUEUE_SHARE = 1 / 2;
/**
 * Nodes leave READY empty while the queue is short if the mean duration of INIT is at most this share of the mean duration of RUNNING. The RUN
 * workers then wait for each INIT, which costs at most this share of their time.
 */
const MAX_INIT_SHARE = 1 / 50;

/** The part of a node's claim that is the same for every trainer. */
export type NodeClaim = {
  readonly nodeId: string;
  readonly slots: number;
  /** The memory of the node; `null` for no limit. */
  readonly memory: NodeMemory | null;
  readonly nowMs: number;
  readonly leaseExpiresMs: number;
  readonly updatedAt: string;
};

/** Why no session of a trainer is leased: the name of the configured limit that is reached, and a sentence that explains it. */
export type HoldBack = { readonly limit: string; readonly why: string };

/**
 * The claimed sessions. `isQueueEmpty` means that no node can get a session: no session is queued that may be leased now. `isHeldBack` means
 * that there are fewer sessions than requested because a trainer with queued sessions has reached its limit of uncollected results.
 * `isOutOfMemory` means that there are fewer because the next session does not fit into the node's free memory.
 */
export type ScheduledClaim = {
  readonly rows: readonly SessionRow[];
  readonly isQueueEmpty: boolean;
  readonly isHeldBack: boolean;
  readonly isOutOfMemory: boolean;
};

/** Sessions of one trainer that a node gets. `isCut` means that the trainer's next session does not fit into the node's free memory. */
type TrainerClaim = { readonly rows: readonly SessionRow[]; readonly isCut: boolean };

/**
 * Decides how many sessions of each trainer a node gets. Its state consists only of estimates of loads and durations, so it may differ
 * between servers that share a store.
 */
export class Scheduling {
  private readonly config: RolloutConfig;
  private readonly clock: Clock;
  private loads = new Map<string, TrainerLoad>();
  /** Number of queued sessions of each trainer. */
  private queued = new Map<string, number>();
  private nextLoadsMs = Number.NEGATIVE_INFINITY;
  private meanMs: number | null = null;
  private nextMeanMs = Number.NEGATIVE_INFINITY;
  readonly stages = new StageMeans();

  constructor(config: RolloutConfig, clock: Clock) {
    this.config = config;
    this.clock = clock;
  }

  /** Claims up to `slots` sessions. They are shared fairly among the trainers that have queued sessions which may be leased now. */
  async claim(tables: StoreTables, claim: NodeClaim): Promise<ScheduledClaim> {
    const waiting = await tables.sessions.waitingTrainers(claim.nowMs);
    if (waiting.length === 0) {
      this.emptyQueues();
      return { rows: [], isQueueEmpty: true, isHeldBack: false, isOutOfMemory: false };
    }
    await this.refreshLoads(tables);
    let trainers = waiting.filter((trainer) => this.holdBack(this.loadOf(trainer)) === null);
    const isHeldBack = trainers.length < waiting.length;
    const isQueueEmpty = trainers.length === 0;
    const rows: SessionRow[] = [];
    let isOutOfMemory = false;
    // A session that does not fit ends the claim, so that smaller sessions of other trainers cannot take the memory for which it waits.
    while (rows.length < claim.slots && trainers.length > 0 && !isOutOfMemory) {
      const exhausted = new Set<string>();
      for (const [trainer, share] of this.shares(claim.slots - rows.length, trainers)) {
        const memory = memoryAfter(claim.memory, rows);
        const { rows: claimed, isCut } = await this.claimFrom(tables, trainer, { ...claim, memory, slots: share });
        this.countClaimed(trainer, claimed.length);
        rows.push(...claimed);
        if (claimed.length < share) exhausted.add(trainer);
        isOutOfMemory = isCut;
        if (isOutOfMemory) break;
      }
      // Trainers that had fewer sessions than their share are removed, and their remaining slots go to the other trainers.
      trainers = trainers.filter((trainer) => !exhausted.has(trainer));
    }
    return { rows, isQueueEmpty, isHeldBack: isHeldBack && rows.length < claim.slots, isOutOfMemory };
  }

  /**
   * Whether a node that holds `held` sessions may lease sessions for which it has no free RUN worker yet. Near the end of the queue, such a
   * session would wait in READY for one of this node's workers while other nodes run later sessions of the queue, or nothing. The answer is
   * true while the mean durations of the stages are unknown, and when no other node holds sessions.
   */
  mayLeaseAhead(held: number): boolean {
    const { init_ms: initMs, running_ms: runningMs } = this.stages.current();
    if (initMs === null || runningMs === null || initMs > runningMs * MAX_INIT_SHARE) return true;
    let [queued, live] = [0, 0];
    for (const load of this.loads.values()) live += load.live;
    for (const [trainer, sessions] of this.queued) {
      if (this.holdBack(this.loadOf(trainer)) === null) queued += sessions;
    }
    return live <= held || queued >= live * SHORT_QUEUE_SHARE;
  }

  /** Returns why no session of a trainer is leased now; `null` when its sessions may be leased. */
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

  private async claimFrom(tables: StoreTables, trainer: string, claim: NodeClaim): Promise<TrainerClaim> {
    const { queue_order: order } = this.config;
    const { slots: limit, ...rest } = claim;
    if (order === 'fifo') return claimInOrder(tables, { ...rest, limit, trainer, order });
    const first = await claimInOrder(tables, { ...rest, limit, trainer, order: 'overdue' });
    if (first.isCut || first.rows.length === limit) return first;
    const memory = memoryAfter(claim.memory, first.rows);
    const others = { ...rest, memory, limit: limit - first.rows.length, trainer, order };
    const { rows, isCut } = await claimInOrder(tables, others);
    return { rows: [...first.rows, ...rows], isCut };
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
    return this.loads.get(trainer) ?? { trainer, live: 0, uncollected_results: 0, uncollected_bytes: 0 };
  }

  /**
   * Counts claimed sessions as live instead of queued until the loads are next read. When the transaction fails, the estimate is wrong until
   * then.
   */
  private countClaimed(trainer: string, count: number): void {
    const load = this.loadOf(trainer);
    this.loads.set(trainer, { ...load, live: load.live + count });
    this.queued.set(trainer, Math.max(0, (this.queued.get(trainer) ?? 0) - count));
  }

  /** Counts no session as queued until the loads are next read. They are not read while no session can be claimed. */
  private emptyQueues(): void {
    this.queued.clear();
  }

  private async refreshLoads(tables: StoreTables): Promise<void> {
    const startedMs = this.clock.monotonicMs();
    if (startedMs < this.nextLoadsMs) return;
    // The time of the next read is set before this read starts, so that concurrent claims use the loads in memory instead of reading them
    // as well.
    this.nextLoadsMs = startedMs + LOADS_INTERVAL_MS;
    const loads = await tables.sessions.loads();
    const queued = await tables.sessions.queued();
    this.loads = new Map(loads.map((load) => [load.trainer, load]));
    this.queued.clear();
    for (const { trainer, sessions } of queued) {
      this.queued.set(trainer, (this.queued.get(trainer) ?? 0) + sessions);
    }
    const endedMs = this.clock.monotonicMs();
    this.nextLoadsMs = endedMs + Math.max(LOADS_INTERVAL_MS, LOADS_TIME_FACTOR * (endedMs - startedMs));
  }
}

async function claimInOrder({ sessions }: StoreTables, request: ClaimRequest): Promise<TrainerClaim> {
  const rows = await sessions.claim(request);
  const isLimited = request.memory != null && rows.length < request.limit;
  return { rows, isCut: isLimited && (await sessions.hasDue(request)) };
}

/** Returns the memory of a node after the sessions in `rows` have been leased to it. */
function memoryAfter(memory: NodeMemory | null, rows: readonly SessionRow[]): NodeMemory | null {
  if (memory === null) return null;
  return { ...memory, freeMb: rows.reduce((free, { memory_mb: needed }) => free - needed, memory.freeMb) };
}
