import type { Lease, TaskRequestInput } from '@floe-rl/core/schema';
import { RELIABLE_NETWORK } from './network.ts';
import type { Plan, SessionScript, TaskPlan, TrainerPlan } from './plan.ts';
import { SeededRandom } from './random.ts';
import { RELIABLE_DISK } from './sim-store.ts';

/** The size of one large simulated cluster. `sessions` is the number of sessions that run at once when the cluster is full. */
export type ClusterSize = {
  readonly nodes: number;
  readonly sessions: number;
  readonly replicas: number;
  readonly engines: number;
  readonly seed: number;
};

export const LEASE_SECONDS = 30;
/** In the first part, in which nothing fails, the cluster runs this many times as many sessions as it can run at once. */
const WAVES = 2;
const SAMPLES = 8;
const TRAINERS = 4;
/** Shortest and longest mean time of a task's agents, ms. Means in between are equally likely on a logarithmic scale. */
const RUN_MS = { from: 40_000, to: 160_000 };
/** Largest relative deviation of one session from the mean of its task. */
const DEVIATION = 0.1;
const INIT_MS = { from: 500, to: 1_500 };
const POSTRUN_MS = { from: 200, to: 1_000 };
/** Number of different mean durations of tasks. The server knows them from earlier sessions. */
const MEANS = 200;
/** Range in ms of the duration of one commit. It is short, because a database syncs all commits that wait at the same time together. */
const SYNC_MS = { from: 0.02, to: 0.2 };
const MAX_EVENTS = 2_000;
const TURNS = 4;

/** Returns the pools of one node that runs `run` agents at once. */
export function poolsOf({ nodes, sessions }: ClusterSize) {
  const run = Math.ceil(sessions / nodes);
  return { init: Math.ceil(run / 3), ready: Math.ceil(run / 12), run, postrun: Math.ceil(run / 6) };
}

/** Returns the mean durations that the server has learned from earlier sessions, by the `duration_key` of a task, ms. */
export function knownMeans(): ReadonlyMap<string, number> {
  const factor = RUN_MS.to / RUN_MS.from;
  return new Map(
    Array.from({ length: MEANS }, (_, i) => [`mean-${i}`, RUN_MS.from * factor ** (i / (MEANS - 1))] as const),
  );
}

/** Returns the plan of a large cluster. Its trainers submit nothing by themselves: {@link tasksOf} returns their tasks. */
export function largePlan(size: ClusterSize): Plan {
  const means = knownMeans();
  const pools = poolsOf(size);
  return {
    seed: size.seed,
    isFaultless: false,
    servers: size.replicas,
    engines: size.engines,
    nodes: Array.from({ length: size.nodes }, (_, i) => {
      const name = `node-${i + 1}`;
      return { nodeId: name, hostName: name, pools, policy: 'pipeline', firstServer: i, excessSessions: 0 };
    }),
    trainers: Array.from({ length: TRAINERS }, (_, i): TrainerPlan => {
      const name = `trainer-${i + 1}`;
      return {
        ...{ name, tasks: [], reads: 'own', readPauseMs: 0, pageSize: 500, isConsumer: false },
        callbackRefusalRate: 0,
      };
    }),
    server: {
      lease_seconds: LEASE_SECONDS,
      node_timeout_seconds: LEASE_SECONDS,
      queue_order: 'longest_first',
      // Retention reads all blobs of the store in memory. It has nothing to remove here.
      retention_sweep_seconds: 1e9,
    },
    heartbeatSeconds: 5,
    faultPeriodMs: 0,
    faultKinds: [],
    faultIntervalMs: 0,
    network: RELIABLE_NETWORK,
    disk: RELIABLE_DISK,
    syncMs: SYNC_MS,
    maxEvents: MAX_EVENTS,
    script: (lease) => scriptOf(lease, means.get(lease.task.duration_key ?? '') ?? RUN_MS.from),
    announcementLossRate: 0,
    putFailureRate: 0,
    clockRate: () => 1,
  };
}

/** Returns the tasks of each trainer, by name. Together they have `waves` times as many sessions as the cluster runs at once. */
export function tasksOf(
  { seed, sessions }: ClusterSize,
  part: string,
  waves = WAVES,
): ReadonlyMap<string, readonly TaskPlan[]> {
  const random = new SeededRandom(seed);
  const count = Math.ceil((waves * sessions) / SAMPLES / TRAINERS);
  return new Map(
    Array.from({ length: TRAINERS }, (_, trainer) => {
      const name = `trainer-${trainer + 1}`;
      const tasks = Array.from({ length: count }, (_, i) => {
        const request: TaskRequestInput = {
          instruction: 'solve it',
          agent: { harness: 'shell', custom_shell: 'true' },
          idempotency_key: `${name}/${part}/${i}`,
          trainer: name,
          num_samples: SAMPLES,
          max_attempts: 4,
          timeout_seconds: 3_600,
          duration_key: `mean-${random.integer(0, MEANS - 1)}`,
        };
        return { atMs: 0, request, cancelAtMs: null, cancelSessionAtMs: null };
      });
      return [name, tasks] as const;
    }),
  );
}

/** Returns the stages of a session. They depend only on the task and the sample, so a further attempt takes as long as the first one. */
function scriptOf({ session_id: id }: Pick<Lease, 'session_id'>, meanMs: number): SessionScript {
  const random = new SeededRandom(Number(id.replace(/\D/g, '')));
  return {
    initMs: random.between(INIT_MS.from, INIT_MS.to),
    initFails: false,
    turns: TURNS,
    turnMs: (meanMs * random.between(1 - DEVIATION, 1 + DEVIATION)) / TURNS,
    hangs: false,
    fails: false,
    postrunMs: random.between(POSTRUN_MS.from, POSTRUN_MS.to),
    hasReward: true,
    reward: random.integer(0, 1),
  };
}
