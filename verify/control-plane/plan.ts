import type { Lease, NodeRegistration, TaskRequestInput } from '@floe-rl/core/schema';
import type { RolloutConfigInput } from '@floe-rl/server';
import type { PoolSizes } from '#node/gateway/node/config';
import { type NetworkFaults, RELIABLE_NETWORK } from './network.ts';
import { SeededRandom } from './random.ts';
import { type DiskFaults, RELIABLE_DISK } from './sim-store.ts';

export type NodePlan = {
  readonly nodeId: string;
  readonly hostName: string;
  readonly pools: PoolSizes;
  readonly policy: NodeRegistration['dispatch_policy'];
  /** Index of the server that the node calls first. */
  readonly firstServer: number;
  /** Number of sessions that the node requests beyond its capacity, to test whether it copes with more leases than it can run. */
  readonly excessSessions: number;
};

export type TaskPlan = {
  /** Virtual time at which the task is submitted, ms. */
  readonly atMs: number;
  readonly request: TaskRequestInput;
  /** Virtual time at which the trainer cancels the task, ms; `null` when it does not. The cancellation may precede the submission. */
  readonly cancelAtMs: number | null;
  /** Virtual time at which the trainer cancels one session of the task, ms; `null` when it cancels none. */
  readonly cancelSessionAtMs: number | null;
};

export type TrainerPlan = {
  readonly name: string;
  readonly tasks: readonly TaskPlan[];
  /** Which results the trainer reads: none, the results of its own tasks, or the results of all trainers. */
  readonly reads: 'none' | 'own' | 'all';
  /** Time for which the trainer pauses between two reads of results, ms. A long pause represents a trainer that is busy training. */
  readonly readPauseMs: number;
  /** Largest number of results of one read. Each read draws its own limit between a fifth of this number and this number. */
  readonly pageSize: number;
  /** Whether the trainer reads results as a named consumer, so that the server stores the cursor up to which it has read. */
  readonly isConsumer: boolean;
  /** Probability that the trainer answers a callback with an error, immediately or only after the server has disconnected. */
  readonly callbackRefusalRate: number;
};

/** The kinds of faults that a simulation can inject. Each simulation injects a random selection of these kinds. */
export const FAULT_KINDS = [
  'kill_server',
  'restart_server',
  'kill_node',
  'close_node',
  'pause_server',
  'pause_node',
  'partition',
  'database_outage',
  'power_failure',
  'engine',
  'wall_clock',
  'drain',
  'duplicate_node',
] as const;
export type FaultKind = (typeof FAULT_KINDS)[number];

/**
 * Script of one session attempt: how long its stages take and whether they fail or hang. It depends only on the seed, the session id and
 * the attempt number.
 */
export type SessionScript = {
  readonly initMs: number;
  readonly initFails: boolean;
  readonly turns: number;
  readonly turnMs: number;
  readonly hangs: boolean;
  readonly fails: boolean;
  readonly postrunMs: number;
  readonly hasReward: boolean;
  readonly reward: number;
};

/** The configuration of one simulation: the processes, tasks and faults of its cluster. It is derived from the seed alone. */
export type Plan = {
  readonly seed: number;
  /** Whether the simulation injects no faults. The checks then also require that held requests are answered soon after a change. */
  readonly isFaultless: boolean;
  readonly servers: number;
  /** Number of engines among which each node chooses for every call; 0 for one engine that takes all calls. */
  readonly engines: number;
  readonly nodes: readonly NodePlan[];
  readonly trainers: readonly TrainerPlan[];
  readonly server: RolloutConfigInput;
  readonly heartbeatSeconds: number;
  /** Virtual time during which faults are injected, ms. */
  readonly faultPeriodMs: number;
  readonly faultKinds: readonly FaultKind[];
  /** Mean time between two injected faults, ms. */
  readonly faultIntervalMs: number;
  readonly network: NetworkFaults;
  readonly disk: DiskFaults;
  /** Range in ms from which the duration of a sync to disk is drawn. */
  readonly syncMs: { readonly from: number; readonly to: number };
  /** Number of events that the log keeps. */
  readonly maxEvents: number;
  /** Returns what happens in one attempt of a session. */
  script(lease: Lease): SessionScript;
  /** Probability that a message which one server broadcasts to the other servers through the database is lost. */
  readonly announcementLossRate: number;
  /** Probability that a write to the simulated blob store fails. */
  readonly putFailureRate: number;
  /** Returns the speed of a host's monotonic clock relative to virtual time; 1 means the same speed. */
  clockRate(host: string): number;
};

/** Probability that a simulation injects no faults. */
const FAULTLESS_SHARE = 0.2;

/** Derives the plan of a simulation from its seed. The same seed gives the same plan. */
export function createPlan(seed: number): Plan {
  const random = new SeededRandom(seed);
  const isFaultless = random.chance(FAULTLESS_SHARE);
  const drift = isFaultless || random.chance(0.5) ? 0 : 0.02;
  const rates = new Map<string, number>();
  const servers = random.integer(1, 2);
  const leaseSeconds = random.between(2, 5);
  const trainers = Array.from({ length: random.integer(1, 2) }, (_, index) =>
    trainerPlan(random, `trainer-${index + 1}`, isFaultless),
  );
  return {
    seed,
    isFaultless,
    servers,
    engines: 0,
    nodes: Array.from({ length: random.integer(isFaultless ? 1 : 2, 4) }, (_, index) =>
      nodePlan(random, index, isFaultless),
    ),
    trainers,
    server: serverConfig(random, leaseSeconds, trainers, isFaultless),
    heartbeatSeconds: leaseSeconds / 3,
    faultPeriodMs: isFaultless ? 3_000 : random.between(3_000, 9_000),
    faultKinds: isFaultless ? [] : FAULT_KINDS.filter(() => random.chance(0.4)),
    faultIntervalMs: random.between(400, 3_000),
    network: isFaultless ? RELIABLE_NETWORK : networkFaults(random),
    disk: isFaultless ? RELIABLE_DISK : diskFaults(random),
    syncMs: { from: 0.2, to: 2 },
    maxEvents: Number.POSITIVE_INFINITY,
    script: (lease) => randomScript(seed, lease),
    announcementLossRate: isFaultless || random.chance(0.5) ? 0 : random.between(0.1, 1),
    putFailureRate: isFaultless || random.chance(0.6) ? 0 : random.between(0.02, 0.3),
    clockRate: (host) => {
      const known = rates.get(host) ?? 1 + random.between(-drift, drift);
      rates.set(host, known);
      return known;
    },
  };
}

function networkFaults(random: SeededRandom): NetworkFaults {
  const rate = (max: number): number => (random.chance(0.5) ? 0 : random.between(0, max));
  return { drop: rate(0.15), slow: rate(0.15), duplicate: rate(0.15), loseReply: rate(0.2) };
}

function diskFaults(random: SeededRandom): DiskFaults {
  const rate = (max: number): number => (random.chance(0.5) ? 0 : random.between(0, max));
  return { refuse: rate(0.1), unknown: rate(0.1), interrupt: rate(0.2), slow: rate(0.1) };
}

function serverConfig(
  random: SeededRandom,
  leaseSeconds: number,
  trainers: readonly TrainerPlan[],
  isFaultless: boolean,
): RolloutConfigInput {
  // `max_uncollected_results` is set only when every trainer reads results. A trainer that gets results only by callback collects a whole
  // task at once, so a limit smaller than the task would block the task.
  const limited = trainers.every(({ reads }) => reads !== 'none') && random.chance(0.3);
  return {
    ...(limited ? { max_uncollected_results: random.integer(1, 5) } : {}),
    // Only runs without faults remove ended tasks after a few seconds. With faults, a trainer may repeat a submission after its task was
    // removed, which would create the task a second time.
    ...(isFaultless && random.chance(0.5)
      ? { retain_tasks_hours: random.between(0.0003, 0.002), retention_sweep_seconds: 1 }
      : {}),
    ...(random.chance(0.3) ? { queue_order: 'longest_first' as const } : {}),
    avoid_node_seconds: random.between(0, 5),
    lease_seconds: leaseSeconds,
    sweep_seconds: random.between(0.3, 1),
    node_timeout_seconds: leaseSeconds,
    retry_backoff_seconds: random.between(0.1, 0.8),
    retry_backoff_max_seconds: 3,
    tombstone_seconds: random.between(1, 60),
    callback_timeout_seconds: random.between(1, 3),
    callback_backoff_seconds: 0.2,
    callback_backoff_max_seconds: 2,
    callback_claim_seconds: random.between(1.5, 4),
    shutdown_grace_seconds: 0.3,
  };
}

function nodePlan(random: SeededRandom, index: number, isFaultless: boolean): NodePlan {
  return {
    nodeId: `node-${index + 1}`,
    hostName: `node-${index + 1}`,
    pools: {
      init: random.integer(1, 3),
      ready: random.integer(0, 2),
      run: random.integer(1, 3),
      postrun: random.integer(1, 2),
    },
    firstServer: 0,
    policy: random.chance(0.7) ? 'pipeline' : random.pick(['batch', 'bounded_batch']),
    excessSessions: !isFaultless && random.chance(0.1) ? random.integer(1, 20) : 0,
  };
}

function trainerPlan(random: SeededRandom, name: string, isFaultless: boolean): TrainerPlan {
  const callbacks = random.chance(0.6);
  return {
    name,
    tasks: Array.from({ length: random.integer(1, 4) }, (_, index) => taskPlan(random, name, index, callbacks)),
    reads: callbacks && random.chance(0.3) ? 'none' : random.pick(['own', 'all']),
    readPauseMs: random.chance(0.3) ? random.between(800, 2_500) : 0,
    pageSize: 5,
    isConsumer: random.chance(0.5),
    callbackRefusalRate: isFaultless || random.chance(0.5) ? 0 : random.between(0, 0.5),
  };
}

function taskPlan(random: SeededRandom, trainer: string, index: number, callbacks: boolean): TaskPlan {
  const atMs = random.between(0, 2_500);
  // 8 % of the tasks get so many samples that their sessions occupy every node.
  const samples = random.chance(0.08) ? random.integer(12, 24) : random.integer(1, 4);
  const hasId = random.chance(0.5);
  const stopsEarly = random.chance(0.25);
  const request: TaskRequestInput = {
    instruction: 'solve it',
    agent: { harness: 'shell', custom_shell: 'true' },
    ...(hasId ? { task_id: `${trainer}-task-${index}` } : {}),
    idempotency_key: `${trainer}/${index}`,
    trainer,
    num_samples: samples,
    dispatch_priority: random.chance(0.3) ? random.integer(1, 3) : 0,
    max_attempts: random.integer(1, 4),
    timeout_seconds: random.between(2, 5),
    early_stop_min_usable_sessions: stopsEarly ? random.integer(1, samples) : null,
    refill: random.chance(0.25) ? random.integer(1, 3) : 0,
    deadline_seconds: random.chance(0.15) ? random.between(0.5, 6) : null,
    evaluator: random.chance(0.6) ? { strategy: 'session_completed' } : null,
    callback_url: callbacks && random.chance(0.8) ? `http://127.0.0.1/${trainer}` : null,
    callback_results: random.chance(0.5) ? 'full' : 'summary',
  };
  const cancelAtMs = random.chance(0.2) ? atMs + random.between(-300, 3_000) : null;
  const cancelSessionAtMs = random.chance(0.15) ? atMs + random.between(0, 3_000) : null;
  return { atMs, request, cancelAtMs, cancelSessionAtMs };
}

function randomScript(seed: number, lease: Pick<Lease, 'session_id' | 'attempt'>): SessionScript {
  const random = new SeededRandom(seed * 65_599 + hash(`${lease.session_id}/${lease.attempt}`));
  const quick = random.chance(0.3);
  return {
    initMs: quick ? random.between(1, 20) : random.between(50, 400),
    initFails: random.chance(0.08),
    turns: random.integer(0, 3),
    turnMs: quick ? random.between(1, 30) : random.between(50, 400),
    hangs: random.chance(0.04),
    fails: random.chance(0.08),
    postrunMs: random.between(1, 200),
    hasReward: !random.chance(0.1),
    reward: random.integer(0, 1),
  };
}

function hash(text: string): number {
  let number = 7;
  for (let i = 0; i < text.length; i++) number = (Math.imul(number, 31) + text.charCodeAt(i)) >>> 0;
  return number;
}
