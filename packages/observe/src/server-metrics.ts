import { nodeState, type RolloutEvent, type RolloutStatus } from '@floe-rl/core/schema';
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';

/**
 * Maximum number of trainers that have a label value of their own. All others are summed as `other`, so that trainer names cannot create
 * an unlimited number of series.
 */
const MAX_TRAINERS = 50;

/** The methods of a rollout server from which its metrics are computed. */
type MeasuredServer = {
  status(): Promise<RolloutStatus>;
  subscribe(listener: (event: RolloutEvent) => void): () => void;
};

/**
 * The metrics of a rollout server, computed from its status at each scrape. Label values never contain the id of a session or task, so
 * that the number of series stays bounded.
 */
export class ServerMetrics {
  readonly registry = new Registry();
  private readonly registers = [this.registry];
  private readonly outcomes = new Counter({
    name: 'floe_server_sessions_ended_total',
    help: 'Sessions that ended, by outcome, as seen by this server process',
    labelNames: ['outcome'],
    registers: this.registers,
  });
  private readonly sessions = this.gauge('sessions', 'Sessions by status', ['status']);
  private readonly tasks = this.gauge('tasks', 'Tasks by status', ['status']);
  private readonly trainers = this.gauge('trainer_sessions', 'Queued and live sessions of each trainer', [
    'trainer',
    'state',
  ]);
  private readonly uncollected = this.gauge('uncollected_results', 'Results that their trainer has not collected yet', [
    'trainer',
  ]);
  private readonly uncollectedBytes = this.gauge(
    'uncollected_bytes',
    'Bytes of the results that their trainer has not collected yet',
    ['trainer'],
  );
  private readonly nodes = this.gauge('nodes', 'Nodes by state: healthy, refusing, draining or silent', ['state']);
  private readonly slots = this.gauge(
    'stage_slots',
    'Slots of the stage pools of all healthy nodes by state: used and size',
    ['stage', 'state'],
  );
  private readonly callbacks = this.gauge('undelivered_callbacks', 'Callbacks that are not acknowledged yet', []);
  private readonly holding = this.gauge('holding_back', 'Sessions that wait because of a limit, by limit', ['limit']);
  private readonly bottleneck = this.gauge('bottleneck', '1 for the limit that delays the most sessions now', ['name']);
  private readonly batchGroups = this.gauge(
    'batch_groups',
    'Groups of the running batch streams of each trainer, by state: running, ready, handed, expired, restarted',
    ['trainer', 'state'],
  );
  private readonly rejectedGroups = this.gauge(
    'batch_groups_rejected',
    'Groups of the running batch streams of each trainer that were not informative, by reason',
    ['trainer', 'reason'],
  );
  private readonly staleness = this.gauge(
    'batch_staleness_versions',
    'How many policy steps the oldest group of the last batch is older than the policy: the largest of the running streams of each trainer',
    ['trainer'],
  );
  private readonly usefulShare = this.gauge(
    'batch_useful_share',
    'Tokens of handed and ready groups, divided by those of all ended groups of the running batch streams of each trainer',
    ['trainer'],
  );
  private readonly counters = new Map<string, Counter>();
  private server: MeasuredServer | null = null;

  constructor() {
    collectDefaultMetrics({ register: this.registry });
  }

  get contentType(): string {
    return this.registry.contentType;
  }

  /** Sets the server from which the metrics are computed from now on. */
  observe(server: MeasuredServer): void {
    this.server = server;
    server.subscribe((event) => {
      if (event.type === 'session.state_changed' && event.outcome !== null)
        this.outcomes.inc({ outcome: event.outcome });
    });
  }

  async metrics(): Promise<string> {
    if (this.server !== null) this.update(await this.server.status());
    return this.registry.metrics();
  }

  private update(status: RolloutStatus): void {
    set(this.sessions, 'status', status.sessions);
    set(this.tasks, 'status', status.tasks);
    this.updateTrainers(status.trainers);
    this.updateBatches(status.batch_streams);
    this.updateNodes(status.nodes);
    this.callbacks.set(status.undelivered_callbacks);
    this.holding.reset();
    for (const { limit, count } of status.holding_back) this.holding.inc({ limit }, count);
    this.bottleneck.reset();
    if (status.bottleneck !== null) this.bottleneck.set({ name: status.bottleneck.name }, 1);
    for (const [name, value] of Object.entries(status.counters)) this.updateCounter(name, value);
  }

  private updateTrainers(trainers: RolloutStatus['trainers']): void {
    for (const gauge of [this.trainers, this.uncollected, this.uncollectedBytes]) gauge.reset();
    for (const [i, one] of trainers.entries()) {
      const trainer = i < MAX_TRAINERS ? one.trainer : 'other';
      this.trainers.inc({ trainer, state: 'queued' }, one.queued);
      this.trainers.inc({ trainer, state: 'live' }, one.live);
      this.uncollected.inc({ trainer }, one.uncollected_results);
      this.uncollectedBytes.inc({ trainer }, one.uncollected_bytes);
    }
  }

  /** The streams of a trainer are summed, since some trainers create a stream for each step. */
  private updateBatches(streams: RolloutStatus['batch_streams']): void {
    for (const gauge of [this.batchGroups, this.rejectedGroups, this.staleness, this.usefulShare]) gauge.reset();
    const staleness = new Map<string, number>();
    const tokens = new Map<string, { useful: number; ended: number }>();
    for (const stream of streams) {
      const { trainer, running, ready, handed, expired, restarted, ended_tokens: ended } = stream;
      for (const [state, groups] of Object.entries({ running, ready, handed, expired, restarted }))
        this.batchGroups.inc({ trainer, state }, groups);
      for (const [reason, groups] of Object.entries(stream.rejected))
        this.rejectedGroups.inc({ trainer, reason }, groups);
      if (stream.staleness !== null)
        staleness.set(trainer, Math.max(stream.staleness, staleness.get(trainer) ?? stream.staleness));
      const sum = tokens.get(trainer) ?? { useful: 0, ended: 0 };
      tokens.set(trainer, { useful: sum.useful + (stream.useful_share ?? 0) * ended, ended: sum.ended + ended });
    }
    for (const [trainer, steps] of staleness) this.staleness.set({ trainer }, steps);
    for (const [trainer, { useful, ended }] of tokens) if (ended > 0) this.usefulShare.set({ trainer }, useful / ended);
  }

  private updateNodes(nodes: RolloutStatus['nodes']): void {
    this.nodes.reset();
    this.slots.reset();
    for (const node of nodes) {
      this.nodes.inc({ state: nodeState(node) });
      if (!node.healthy) continue;
      const { metrics } = node;
      const pools = {
        init: [metrics.init_inflight, node.max_init_workers],
        ready: [metrics.ready_depth, node.ready_size],
        run: [metrics.run_inflight, node.max_run_workers],
        postrun: [metrics.postrun_inflight, node.max_postrun_workers],
      };
      for (const [stage, [used = 0, size = 0]] of Object.entries(pools)) {
        this.slots.inc({ stage, state: 'used' }, used);
        this.slots.inc({ stage, state: 'size' }, size);
      }
    }
  }

  private updateCounter(name: string, value: number): void {
    const known = this.counters.get(name);
    const counter =
      known ??
      new Counter({
        name: `floe_server_${name}_total`,
        help: `counters.${name} of GET /rollout/status`,
        registers: this.registers,
      });
    this.counters.set(name, counter);
    counter.reset();
    counter.inc(value);
  }

  private gauge(name: string, help: string, labelNames: string[]): Gauge {
    return new Gauge({ name: `floe_server_${name}`, help, labelNames, registers: this.registers });
  }
}

function set(gauge: Gauge, label: string, values: Readonly<Record<string, number>>): void {
  gauge.reset();
  for (const [name, value] of Object.entries(values)) gauge.set({ [label]: name }, value);
}
