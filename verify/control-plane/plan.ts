import type { PoolSizes } from '../../src/gateway/node/config.ts';
import type { RolloutConfigInput } from '../../src/rollout/config.ts';
import type { NodeRegistration, TaskRequestInput } from '../../src/schema/index.ts';
import { Dice } from './dice.ts';
import { GOOD_NETWORK, type NetworkFaults } from './network.ts';
import { type DiskFaults, GOOD_DISK } from './sim-disk.ts';

export type NodePlan = {
  readonly nodeId: string;
  readonly hostName: string;
  readonly pools: PoolSizes;
  readonly policy: NodeRegistration['dispatch_policy'];
  /** Sessions that it asks for beyond its capacity. */
  readonly lie: number;
};

export type TaskPlan = {
  readonly atMs: number;
  readonly request: TaskRequestInput;
  readonly cancelAtMs: number | null;
  readonly cancelOneAtMs: number | null;
};

export type TrainerPlan = {
  readonly name: string;
  readonly tasks: readonly TaskPlan[];
  readonly reader: 'none' | 'own' | 'all';
  /** Between two looks at the results, ms: some trainers are busy training. */
  readonly readEveryMs: number;
  /** Its reader has a name, under which the server knows how far it has read. */
  readonly named: boolean;
  /** Chance of a callback that is answered with an error, or not at all. */
  readonly refuseCallback: number;
};

/** Kinds of trouble, each of which a world has or has not. */
export const TROUBLES = [
  'kill_server',
  'restart_server',
  'kill_node',
  'close_node',
  'pause_server',
  'pause_node',
  'partition',
  'database_away',
  'power_failure',
  'engine',
  'wall_clock',
  'drain',
  'twin',
] as const;
export type Trouble = (typeof TROUBLES)[number];

/** What happens in the world of one seed, as far as it is decided beforehand. */
export type Plan = {
  readonly seed: number;
  /** Nothing goes wrong, so what must happen must happen at once. */
  readonly calm: boolean;
  readonly servers: number;
  readonly nodes: readonly NodePlan[];
  readonly trainers: readonly TrainerPlan[];
  readonly server: RolloutConfigInput;
  readonly heartbeatSeconds: number;
  /** How long things go wrong, ms. */
  readonly troubleMs: number;
  readonly troubles: readonly Trouble[];
  /** Mean time between two troubles, ms. */
  readonly betweenMs: number;
  readonly network: NetworkFaults;
  readonly disk: DiskFaults;
  readonly loseAnnouncement: number;
  readonly failPut: number;
  /** Monotonic clocks of hosts run faster or slower than true time. */
  clockRate(host: string): number;
};

const CALM_SHARE = 0.2;

export function planOf(seed: number): Plan {
  const dice = new Dice(seed);
  const calm = dice.chance(CALM_SHARE);
  const drift = calm || dice.chance(0.5) ? 0 : 0.02;
  const rates = new Map<string, number>();
  const servers = dice.whole(1, 2);
  const leaseSeconds = dice.between(2, 5);
  const trainers = Array.from({ length: dice.whole(1, 2) }, (_, index) =>
    trainerPlan(dice, `trainer-${index + 1}`, calm),
  );
  return {
    seed,
    calm,
    servers,
    nodes: Array.from({ length: dice.whole(calm ? 1 : 2, 4) }, (_, index) => nodePlan(dice, index, calm)),
    trainers,
    server: serverConfig(dice, leaseSeconds, trainers, calm),
    heartbeatSeconds: leaseSeconds / 3,
    troubleMs: calm ? 3_000 : dice.between(3_000, 9_000),
    troubles: calm ? [] : TROUBLES.filter(() => dice.chance(0.4)),
    betweenMs: dice.between(400, 3_000),
    network: calm ? GOOD_NETWORK : networkFaults(dice),
    disk: calm ? GOOD_DISK : diskFaults(dice),
    loseAnnouncement: calm || dice.chance(0.5) ? 0 : dice.between(0.1, 1),
    failPut: calm || dice.chance(0.6) ? 0 : dice.between(0.02, 0.3),
    clockRate: (host) => {
      const known = rates.get(host) ?? 1 + dice.between(-drift, drift);
      rates.set(host, known);
      return known;
    },
  };
}

function networkFaults(dice: Dice): NetworkFaults {
  const some = (most: number): number => (dice.chance(0.5) ? 0 : dice.between(0, most));
  return { drop: some(0.15), slow: some(0.15), duplicate: some(0.15), loseReply: some(0.2) };
}

function diskFaults(dice: Dice): DiskFaults {
  const some = (most: number): number => (dice.chance(0.5) ? 0 : dice.between(0, most));
  return { refuse: some(0.1), unknown: some(0.1), interrupt: some(0.2), slow: some(0.1) };
}

function serverConfig(
  dice: Dice,
  leaseSeconds: number,
  trainers: readonly TrainerPlan[],
  calm: boolean,
): RolloutConfigInput {
  // Who is only called back collects a task as a whole, and needs room for all of it.
  const limited = trainers.every(({ reader }) => reader !== 'none') && dice.chance(0.3);
  return {
    ...(limited ? { max_uncollected_results: dice.whole(1, 5) } : {}),
    // A submit that is repeated for longer than its task is kept makes a new one, so only a world in which none is.
    ...(calm && dice.chance(0.5)
      ? { retain_tasks_hours: dice.between(0.0003, 0.002), retention_sweep_seconds: 1 }
      : {}),
    ...(dice.chance(0.3) ? { queue_order: 'longest_first' as const } : {}),
    avoid_node_seconds: dice.between(0, 5),
    lease_seconds: leaseSeconds,
    sweep_seconds: dice.between(0.3, 1),
    node_timeout_seconds: leaseSeconds,
    retry_backoff_seconds: dice.between(0.1, 0.8),
    retry_backoff_max_seconds: 3,
    tombstone_seconds: dice.between(1, 60),
    callback_timeout_seconds: dice.between(1, 3),
    callback_backoff_seconds: 0.2,
    callback_backoff_max_seconds: 2,
    callback_claim_seconds: dice.between(1.5, 4),
    shutdown_grace_seconds: 0.3,
  };
}

function nodePlan(dice: Dice, index: number, calm: boolean): NodePlan {
  return {
    nodeId: `node-${index + 1}`,
    hostName: `node-${index + 1}`,
    pools: { init: dice.whole(1, 3), ready: dice.whole(0, 2), run: dice.whole(1, 3), postrun: dice.whole(1, 2) },
    policy: dice.chance(0.7) ? 'pipeline' : dice.pick(['batch', 'bounded_batch']),
    lie: !calm && dice.chance(0.1) ? dice.whole(1, 20) : 0,
  };
}

function trainerPlan(dice: Dice, name: string, calm: boolean): TrainerPlan {
  const callbacks = dice.chance(0.6);
  return {
    name,
    tasks: Array.from({ length: dice.whole(1, 4) }, (_, index) => taskPlan(dice, name, index, callbacks)),
    reader: callbacks && dice.chance(0.3) ? 'none' : dice.pick(['own', 'all']),
    readEveryMs: dice.chance(0.3) ? dice.between(800, 2_500) : 0,
    named: dice.chance(0.5),
    refuseCallback: calm || dice.chance(0.5) ? 0 : dice.between(0, 0.5),
  };
}

function taskPlan(dice: Dice, trainer: string, index: number, callbacks: boolean): TaskPlan {
  const atMs = dice.between(0, 2_500);
  // Some trainers would fill every node, if they were let.
  const samples = dice.chance(0.08) ? dice.whole(12, 24) : dice.whole(1, 4);
  const named = dice.chance(0.5);
  const stops = dice.chance(0.25);
  const request: TaskRequestInput = {
    instruction: 'solve it',
    agent: { harness: 'shell', custom_shell: 'true' },
    ...(named ? { task_id: `${trainer}-task-${index}` } : {}),
    idempotency_key: `${trainer}/${index}`,
    trainer,
    num_samples: samples,
    dispatch_priority: dice.chance(0.3) ? dice.whole(1, 3) : 0,
    max_attempts: dice.whole(1, 4),
    timeout_seconds: dice.between(2, 5),
    early_stop_min_usable_sessions: stops ? dice.whole(1, samples) : null,
    refill: dice.chance(0.25) ? dice.whole(1, 3) : 0,
    deadline_seconds: dice.chance(0.15) ? dice.between(0.5, 6) : null,
    evaluator: dice.chance(0.6) ? { strategy: 'session_completed' } : null,
    callback_url: callbacks && dice.chance(0.8) ? `http://127.0.0.1/${trainer}` : null,
    callback_results: dice.chance(0.5) ? 'full' : 'summary',
  };
  const cancelAtMs = dice.chance(0.2) ? atMs + dice.between(-300, 3_000) : null;
  const cancelOneAtMs = dice.chance(0.15) ? atMs + dice.between(0, 3_000) : null;
  return { atMs, request, cancelAtMs, cancelOneAtMs };
}
