import { FloeError } from '../../core/errors.ts';
import type { NodeInfo, RolloutStatus, SessionStatus } from '../../schema/index.ts';
import { sessionStatusSchema } from '../../schema/index.ts';
import type { NodeRow, StoreTables, TrainerLoad } from '../../store/index.ts';
import { shownConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import { toldBy } from '../engines/changes.ts';
import { nodeInfo } from '../nodes/nodes.ts';
import { bottleneckOf, type Facts } from './bottleneck.ts';
import { poolHints } from './pool-hints.ts';

type Read = Awaited<ReturnType<typeof readAll>>;

/** Before the first look that the store allowed. */
const NOTHING: Read = {
  tasks: new Map(),
  sessions: new Map(),
  undelivered: 0,
  loads: [],
  waiting: [],
  rows: [],
  held: new Map(),
  paused: false,
};

/** `GET /rollout/status`. While the store fails it goes on with what was read last, and says so. */
export class StatusBoard {
  private readonly context: RolloutContext;
  private latest: Read = NOTHING;

  constructor(context: RolloutContext) {
    this.context = context;
  }

  async status(): Promise<RolloutStatus> {
    const { context } = this;
    let failure = context.store.failure;
    try {
      this.latest = await context.store.read((tables) => readAll(tables, context.time.nowMs()));
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
      failure = thrown.message;
    }
    return statusOf(context, this.latest, failure);
  }
}

async function readAll(tables: StoreTables, nowMs: number) {
  return {
    tasks: await tables.tasks.countByStatus(),
    sessions: await tables.sessions.countByStatus(),
    undelivered: await tables.callbacks.countUndelivered(),
    loads: await tables.sessions.loads(),
    waiting: await tables.sessions.waitingTrainers(nowMs),
    rows: await tables.nodes.list(),
    held: await tables.sessions.leasedByNode(),
    paused: (await tables.engines.state()).paused !== null,
  };
}

function statusOf(context: RolloutContext, read: Read, storeFailure: string | null): RolloutStatus {
  const nodes = read.rows.map((row) => nodeInfo(context, row, read.held.get(row.node_id) ?? 0));
  const trainers = read.loads.map((load) => ({ ...load, held_back: context.scheduling.heldBack(load)?.why ?? null }));
  const stages = context.scheduling.stages.current();
  return {
    tasks: {
      running: read.tasks.get('running') ?? 0,
      completed: read.tasks.get('completed') ?? 0,
      cancelled: read.tasks.get('cancelled') ?? 0,
    },
    sessions: Object.fromEntries(
      sessionStatusSchema.options.map((status) => [status, read.sessions.get(status) ?? 0]),
    ) as Record<SessionStatus, number>,
    nodes,
    undelivered_callbacks: read.undelivered,
    limits: shownConfig(context.config),
    holding_back: [
      ...read.loads.flatMap((load) => heldByCollecting(context, load)),
      ...nodes.flatMap(heldByNode),
      ...heldByCallbacks(read),
    ],
    trainers,
    counters: context.counters.all(),
    stages,
    hints: poolHints(nodes, stages),
    bottleneck: bottleneckOf(factsOf(read, nodes, trainers, storeFailure)),
  };
}

function factsOf(
  read: Read,
  nodes: readonly NodeInfo[],
  trainers: RolloutStatus['trainers'],
  storeFailure: string | null,
): Facts {
  const sum = (field: 'queued' | 'live'): number => trainers.reduce((all, trainer) => all + trainer[field], 0);
  const rows = new Map(read.rows.map((row): [string, NodeRow] => [row.node_id, row]));
  return {
    storeFailure,
    queued: sum('queued'),
    live: sum('live'),
    waiting: trainers
      .filter(({ trainer }) => read.waiting.includes(trainer))
      .map(({ trainer, held_back: heldBack }) => ({ trainer, heldBack })),
    nodes: nodes.map((node) => {
      const row = rows.get(node.node_id);
      return { ...node, engines: row === undefined ? null : toldBy(row) };
    }),
    enginesPaused: read.paused,
    undeliveredCallbacks: read.undelivered,
  };
}

type Held = RolloutStatus['holding_back'][number];

function heldByCollecting({ scheduling }: RolloutContext, load: TrainerLoad): Held[] {
  const limit = scheduling.heldBack(load)?.limit;
  if (limit === undefined || load.queued === 0) return [];
  return [{ limit, where: `trainer ${load.trainer}`, count: load.queued, what: 'queued sessions' }];
}

function heldByNode({ node_id, metrics, ...sizes }: NodeInfo): Held[] {
  const where = `node ${node_id}`;
  const held: Held[] = [];
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

function heldByCallbacks({ undelivered }: Read): Held[] {
  if (undelivered === 0) return [];
  return [{ limit: 'callback_backoff_seconds', where: 'server', count: undelivered, what: 'callbacks' }];
}
