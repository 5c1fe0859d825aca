// Simulates one large cluster on the virtual clock. Measures how long nodes wait for leases, how fair the shares of the trainers are, and how
// close the makespan is to the best schedule's. Also measures how soon the cluster recovers when a rack of nodes or a server dies.

import { isTerminal } from '@floe-rl/core/protocol';
import { makespanBound, replayMakespan, type StageDurations } from '../../bench/schedule/replay.ts';
import { SimCluster } from './cluster.ts';
import { checkFinalState, describeUnfinished } from './final-checks.ts';
import { type ClusterSize, knownMeans, LEASE_SECONDS, largePlan, poolsOf, tasksOf } from './large-plan.ts';
import { SeededRandom } from './random.ts';
import { SimGateway } from './sim-gateway.ts';
import { SimServer } from './sim-server.ts';
import { SimTrainer } from './sim-trainer.ts';
import type { Violation } from './timeline.ts';

/** Share of the nodes that are in one rack. */
const RACK_SHARE = 1 / 20;
/** Maximum virtual time in ms until a phase must have reached its end. */
const PHASE_LIMIT_MS = 3_600_000;
/** Virtual time in ms between two checks of whether a phase has reached its end. */
const CHECK_MS = 100;
/** Virtual time in ms after which the killed nodes and the killed server are started once more. */
const REPAIR_MS = 90_000;
/** Virtual time in ms for which the full cluster runs before the rack dies, and then before the server dies. */
const SETTLE_MS = 5_000;

export type LargeResult = {
  readonly violation: Violation | null;
  readonly events: readonly string[];
  readonly virtualMs: number;
  readonly figures: LargeFigures;
};

/** The figures of one large cluster, by their keys in the JSON report. */
type LargeFigures = {
  /** Largest number of sessions that were leased at once. */
  readonly most_live: number;
  /** The makespan divided by the makespan of the best known schedule, which has no overhead. */
  readonly makespan_ratio: number;
  /** The makespan divided by a lower bound of the makespan of every schedule. */
  readonly makespan_over_bound: number;
  /** How long a node and a session waited for each other, in ms of virtual time. */
  readonly lease_p50_ms: number;
  readonly lease_p99_ms: number;
  /** Smallest ratio of a trainer's share of the leased sessions to its fair share. Measured while every trainer has queued sessions. */
  readonly fairness: number;
  /** Largest ratio of the calls on one engine to the mean of all engines. Measured while at least half of the sessions are in a model call. */
  readonly engine_imbalance: number;
  /** Time until every session of the dead rack was leased to another node or had ended, in lease durations. */
  readonly rack_recovery_leases: number;
  /** Time until every node of the dead server had got a reply from another server, in lease durations. */
  readonly replica_recovery_leases: number;
};

/** Simulates a cluster of the given size from its start to its final checks. `print` receives lines about its progress. */
export async function simulateLarge(size: ClusterSize, print: (line: string) => void): Promise<LargeResult> {
  const cluster = new SimCluster(largePlan(size), new SeededRandom(size.seed + 2 ** 40));
  return new LargeCluster(size, cluster, print).run();
}

class LargeCluster {
  private readonly size: ClusterSize;
  private readonly cluster: SimCluster;
  private readonly print: (line: string) => void;
  private readonly trainers = new Map<string, SimTrainer>();
  private readonly servers: readonly SimServer[];
  private readonly gateways: readonly SimGateway[];
  private fairness = 1;
  private imbalance = 0;
  private mostLive = 0;

  constructor(size: ClusterSize, cluster: SimCluster, print: (line: string) => void) {
    const { plan } = cluster;
    this.size = size;
    this.cluster = cluster;
    this.print = print;
    this.servers = Array.from(
      { length: size.replicas },
      (_, i) => new SimServer(`server-${i + 1}`, cluster, this.trainers),
    );
    for (const trainer of plan.trainers) {
      this.trainers.set(trainer.name, new SimTrainer(trainer, cluster, this.servers));
    }
    this.gateways = plan.nodes.map((node) => new SimGateway(node, cluster, this.servers));
  }

  async run(): Promise<LargeResult> {
    const { cluster, size, servers, gateways, trainers } = this;
    const { timeline, database, history } = cluster;
    await this.learnDurations();
    for (const server of servers) server.start();
    await this.advance(1_000);
    for (const trainer of trainers.values()) trainer.start();
    this.submit('measured');
    await this.until('all tasks are submitted', () => this.isSubmitted());

    const startMs = timeline.nowMs;
    for (const gateway of gateways) gateway.start();
    await this.until('all sessions have ended', () => this.isIdle());
    const makespanMs = timeline.nowMs - startMs;
    const durations = this.durations();
    const pools = this.pools();
    const longestFirst = [...durations].sort((a, b) => b.runMs - a.runMs);
    const bestMs = replayMakespan(longestFirst, pools);
    const waits = history.leaseWaitsMs.splice(0).sort((a, b) => a - b);

    this.submit('interrupted', 1.15);
    const capacity = size.nodes * poolsOf(size).run;
    await this.until('the cluster is full', () => this.live() >= capacity);
    await this.advance(SETTLE_MS);
    const rackRecoveryMs = await this.loseRack();
    await this.advance(SETTLE_MS);
    const replicaRecoveryMs = await this.loseServer();
    await this.until('all sessions have ended', () => this.isIdle());
    cluster.faultsEnded = true;
    const unfinished = (): string | null => describeUnfinished(cluster, trainers.values(), gateways);
    await this.until('all results are read', () => unfinished() === null, 1_000);
    if (unfinished() !== null) timeline.reportViolation('liveness', String(unfinished()));
    database.rows.losePower();
    if (timeline.violation === null) checkFinalState(cluster, trainers.values());
    return {
      violation: timeline.violation,
      events: timeline.events,
      virtualMs: timeline.nowMs,
      figures: {
        most_live: this.mostLive,
        makespan_ratio: rounded(makespanMs / bestMs),
        makespan_over_bound: rounded(makespanMs / makespanBound(durations, pools)),
        lease_p50_ms: rounded(quantile(waits, 0.5)),
        lease_p99_ms: rounded(quantile(waits, 0.99)),
        fairness: rounded(this.fairness),
        engine_imbalance: rounded(this.imbalance),
        rack_recovery_leases: rounded(rackRecoveryMs / 1000 / LEASE_SECONDS),
        replica_recovery_leases: rounded(replicaRecoveryMs / 1000 / LEASE_SECONDS),
      },
    };
  }

  /** Kills the nodes of one rack. Resolves to the time in ms until their sessions run on other nodes or have ended. */
  private async loseRack(): Promise<number> {
    const { timeline, database } = this.cluster;
    const rack = this.gateways.slice(0, Math.max(1, Math.round(this.size.nodes * RACK_SHARE)));
    const names = new Set(rack.map((gateway) => gateway.plan.nodeId));
    const lost = rack.flatMap((gateway) => database.rows.state.held.of(gateway.plan.nodeId));
    const startMs = timeline.nowMs;
    this.print(`${rack.length} nodes with ${lost.length} sessions die`);
    for (const gateway of rack) gateway.kill();
    timeline.after(REPAIR_MS, () => {
      for (const gateway of rack) gateway.start();
    });
    const waiting = new Set(lost.map((row) => row.session_id));
    await this.until('the sessions of the rack run on other nodes', () => {
      for (const id of waiting) {
        const row = database.rows.state.sessions.get(id);
        if (row === undefined || isTerminal(row.status)) waiting.delete(id);
        else if (row.lease_expires_ms !== null && !names.has(row.node_id ?? '')) waiting.delete(id);
      }
      return waiting.size === 0;
    });
    return timeline.nowMs - startMs;
  }

  /**
   * Kills one server. Resolves to the time in ms until all nodes that called it are served by other servers; 0 when there is only one server.
   */
  private async loseServer(): Promise<number> {
    const { timeline } = this.cluster;
    const [server] = this.servers;
    if (server === undefined || this.servers.length === 1) return 0;
    const orphans = this.gateways.filter(({ host, server: called }) => host.process !== null && called === server);
    const startMs = timeline.nowMs;
    this.print(`a server that ${orphans.length} nodes call dies`);
    server.kill();
    timeline.after(REPAIR_MS, () => server.start());
    await this.until('its nodes are served by other servers', () =>
      orphans.every((gateway) => gateway.lastReplyMs > startMs),
    );
    return timeline.nowMs - startMs;
  }

  private submit(part: string, waves?: number): void {
    for (const [name, tasks] of tasksOf(this.size, part, waves)) this.trainers.get(name)?.submitAll(tasks);
  }

  private isSubmitted(): boolean {
    return [...this.trainers.values()].every((trainer) => trainer.openTasks === 0);
  }

  private isIdle(): boolean {
    return this.isSubmitted() && this.live() === 0 && this.queued().every((count) => count === 0);
  }

  private live(): number {
    return this.liveByTrainer().reduce((sum, count) => sum + count, 0);
  }

  private liveByTrainer(): number[] {
    const { leasedByTrainer } = this.cluster.database.rows.state;
    return [...this.trainers.keys()].map((name) => leasedByTrainer.size(name));
  }

  private queued(): number[] {
    const { queue } = this.cluster.database.rows.state;
    return [...this.trainers.keys()].map((name) => queue.of(name).length);
  }

  /** Measures the balance of the calls on engines and the shares of the trainers, while the cluster is at least half full. */
  private sample(): void {
    const counts = this.liveByTrainer();
    const live = counts.reduce((sum, count) => sum + count, 0);
    this.mostLive = Math.max(this.mostLive, live);
    const half = this.size.sessions / 2;
    this.imbalance = Math.max(this.imbalance, this.cluster.engines?.imbalance(half) ?? 0);
    if (live < half || this.queued().some((count) => count === 0)) return;
    this.fairness = Math.min(this.fairness, (Math.min(...counts) * counts.length) / live);
  }

  /** Advances virtual time until `holds` returns true. Reports a violation when this takes longer than {@link PHASE_LIMIT_MS}. */
  private async until(what: string, holds: () => boolean, everyMs = CHECK_MS): Promise<void> {
    const { timeline } = this.cluster;
    const limitMs = timeline.nowMs + PHASE_LIMIT_MS;
    while (!holds() && timeline.violation === null) {
      if (timeline.nowMs >= limitMs) return timeline.reportViolation('liveness', `not reached: ${what}`);
      await this.advance(everyMs);
      this.sample();
    }
    this.print(`${(timeline.nowMs / 1000).toFixed(1)} s: ${what}`);
  }

  private async advance(ms: number): Promise<void> {
    const { timeline } = this.cluster;
    const endMs = timeline.nowMs + ms;
    timeline.after(ms, () => {});
    await timeline.run(() => timeline.nowMs >= endMs, endMs);
  }

  private async learnDurations(): Promise<void> {
    const { database } = this.cluster;
    const learned = database.rows.run(async ({ durations }) => {
      for (const [key, ms] of knownMeans()) await durations.observe(`given:${key}`, ms);
    });
    let isStored = false;
    void learned.then(() => {
      isStored = true;
    });
    await this.until('the durations of earlier sessions are stored', () => isStored);
  }

  /** Returns the durations of the ended sessions, without the times for which they waited. */
  private durations(): StageDurations[] {
    const { state } = this.cluster.database.rows;
    return [...state.sessions.values()].flatMap(({ summary }) => {
      if (summary === null) return [];
      const { timing } = JSON.parse(summary) as { timing: Record<string, number | null> };
      const ofStage = (name: string): number => timing[name] ?? 0;
      return { initMs: ofStage('init_ms'), runMs: ofStage('running_ms'), postrunMs: ofStage('eval_ms') };
    });
  }

  private pools() {
    const { nodes } = this.size;
    const { init, ready, run, postrun } = poolsOf(this.size);
    return { init: nodes * init, ready: nodes * ready, run: nodes * run, postrun: nodes * postrun };
  }
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

function rounded(value: number): number {
  return Number(value.toFixed(3));
}
