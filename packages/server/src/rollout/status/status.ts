import { type NodeInfo, type RolloutStatus, type SessionStatus, sessionStatusSchema } from '@floe-rl/core/schema';
import type { NodeRow, QueuedSessions, StoreTables, TrainerLoad } from '../../store/index.ts';
import { streamLoads } from '../batches/views.ts';
import { shownConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import { engineReportOf } from '../engines/directory.ts';
import { NONE_HELD, nodeInfo } from '../nodes/nodes.ts';
import { isStoreUnavailable } from '../watched-store.ts';
import { bottleneckOf, poolHints, type ServiceFacts } from './bottleneck.ts';

/** Maximum number of batch streams in the status, because each stream needs a query of its groups. */
const MAX_BATCH_STREAMS = 50;

type Snapshot = Awaited<ReturnType<typeof readSnapshot>>;

/** The status data until the first successful read of the store. */
const EMPTY: Snapshot = {
  tasks: new Map(),
  started: new Map(),
  queued: [],
  undelivered: 0,
  loads: [],
  waiting: [],
  nodeRows: [],
  leasedByNode: new Map(),
  batchStreams: [],
  paused: false,
};

/**
 * Serves `GET /rollout/status`. While the store fails, it shows the data of the latest successful read, and names the store as the
 * bottleneck.
 */
export class StatusBoard {
  private readonly context: RolloutContext;
  private latest: Snapshot = EMPTY;

  constructor(context: RolloutContext) {
    this.context = context;
  }

  async status(): Promise<RolloutStatus> {
    const { context } = this;
    let failure = context.store.failure;
    try {
      this.latest = await context.store.read((tables) => readSnapshot(tables, context.time.nowMs()));
    } catch (thrown) {
      if (!isStoreUnavailable(thrown)) throw thrown;
      failure = thrown.message;
    }
    return statusOf(context, this.latest, failure);
  }
}

async function readSnapshot(tables: StoreTables, nowMs: number) {
  return {
    tasks: await tables.tasks.countByStatus(),
    started: await tables.sessions.countStarted(),
    queued: await tables.sessions.queued(),
    undelivered: await tables.callbacks.countUndelivered(),
    loads: await tables.sessions.loads(),
    waiting: await tables.sessions.waitingTrainers(nowMs),
    nodeRows: await tables.nodes.list(),
    leasedByNode: await tables.sessions.leasedByNode(),
    batchStreams: await streamLoads(tables, MAX_BATCH_STREAMS),
    paused: (await tables.engines.state()).paused !== null,
  };
}

function statusOf(context: RolloutContext, snapshot: Snapshot, storeFailure: string | null): RolloutStatus {
  const nodes = snapshot.nodeRows.map((row) =>
    nodeInfo(context, row, snapshot.leasedByNode.get(row.node_id) ?? NONE_HELD),
  );
  const trainers = trainersOf(snapshot).map((load) => ({
    ...load,
    held_back: context.scheduling.holdBack(load)?.why ?? null,
  }));
  const sessions = new Map(snapshot.started).set('QUEUED', sumOf(snapshot.queued));
  const stages = context.scheduling.stages.current();
  return {
    tasks: {
      running: snapshot.tasks.get('running') ?? 0,
      completed: snapshot.tasks.get('completed') ?? 0,
      cancelled: snapshot.tasks.get('cancelled') ?? 0,
    },
    sessions: Object.fromEntries(
      sessionStatusSchema.options.map((status) => [status, sessions.get(status) ?? 0]),
    ) as Record<SessionStatus, number>,
    nodes,
    undelivered_callbacks: snapshot.undelivered,
    limits: shownConfig(context.config),
    holding_back: [
      ...trainers.flatMap((trainer) => heldByCollecting(context, trainer)),
      ...nodes.flatMap(heldByNode),
      ...heldByCallbacks(snapshot),
    ],
    trainers,
    batch_streams: snapshot.batchStreams,
    counters: context.counters.all(),
    stages,
    hints: poolHints(nodes, stages),
    bottleneck: bottleneckOf(factsOf(snapshot, nodes, trainers, storeFailure)),
  };
}

type TrainerStatus = TrainerLoad & { readonly queued: number };

/** Returns the load and the number of queued sessions by trainer. Trainers without load and queued sessions are left out. */
function trainersOf({ queued, loads }: Snapshot): TrainerStatus[] {
  const names = new Set([...queued, ...loads].map(({ trainer }) => trainer));
  return [...names].sort().map((trainer) => {
    const load = loads.find((one) => one.trainer === trainer) ?? NO_LOAD;
    return { ...load, trainer, queued: sumOf(queued.filter((part) => part.trainer === trainer)) };
  });
}

const NO_LOAD = { live: 0, uncollected_results: 0, uncollected_bytes: 0 };

function sumOf(queued: readonly QueuedSessions[]): number {
  return queued.reduce((sum, { sessions }) => sum + sessions, 0);
}

function factsOf(
  snapshot: Snapshot,
  nodes: readonly NodeInfo[],
  trainers: RolloutStatus['trainers'],
  storeFailure: string | null,
): ServiceFacts {
  const rows = new Map(snapshot.nodeRows.map((row): [string, NodeRow] => [row.node_id, row]));
  return {
    storeFailure,
    queued: sumOf(snapshot.queued),
    live: trainers.reduce((sum, { live }) => sum + live, 0),
    leastQueuedMemoryMb:
      snapshot.queued.length === 0 ? null : Math.min(...snapshot.queued.map((part) => part.memory_mb)),
    waiting: trainers
      .filter(({ trainer }) => snapshot.waiting.includes(trainer))
      .map(({ trainer, held_back: heldBack }) => ({ trainer, heldBack })),
    nodes: nodes.map((node) => {
      const row = rows.get(node.node_id);
      return { ...node, engines: row === undefined ? null : engineReportOf(row) };
    }),
    enginesPaused: snapshot.paused,
    undeliveredCallbacks: snapshot.undelivered,
  };
}

type HoldingBack = RolloutStatus['holding_back'][number];

function heldByCollecting({ scheduling }: RolloutContext, load: TrainerStatus): HoldingBack[] {
  const limit = scheduling.holdBack(load)?.limit;
  if (limit === undefined || load.queued === 0) return [];
  return [{ limit, where: `trainer ${load.trainer}`, count: load.queued, what: 'queued sessions' }];
}

function heldByNode({ node_id, metrics, ...sizes }: NodeInfo): HoldingBack[] {
  const where = `node ${node_id}`;
  const held: HoldingBack[] = [];
  if (metrics.run_inflight >= sizes.max_run_workers && metrics.ready_depth > 0) {
    held.push({ limit: 'max_run_workers', where, count: metrics.ready_depth, what: 'sessions in READY' });
  }
  if (metrics.postrun_queue_depth > 0) {
    held.push({
      limit: 'max_postrun_workers',
      where,
      count: metrics.postrun_queue_depth,
      what: 'sessions that have run',
    });
  }
  return held;
}

function heldByCallbacks({ undelivered }: Snapshot): HoldingBack[] {
  if (undelivered === 0) return [];
  return [{ limit: 'callback_backoff_seconds', where: 'server', count: undelivered, what: 'callbacks' }];
}
