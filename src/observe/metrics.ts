import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { SessionSummary } from '../schema/index.ts';
import { CallMetrics } from './call-metrics.ts';

/** Spans a stage of a few milliseconds (no-op harness) to one of hours (a long agent run). */
const STAGE_SECONDS = [0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3600, 14_400];
/** One trace where a harness only ever appends; more for sub-agents and rewritten histories. */
const TRACE_COUNTS = [0, 1, 2, 3, 5, 10, 20, 50, 100];
/** A synchronous trainer has one version for each session; more are weight updates while it ran. */
const VERSION_COUNTS = [0, 1, 2, 3, 4, 6, 8, 16];

export type GatewayMetrics = {
  readonly registry: Registry;
  readonly calls: CallMetrics;
  readonly sessions: Counter<'outcome'>;
  readonly stageSeconds: Histogram<'stage'>;
  readonly queueWait: Histogram<'stage'>;
  readonly traces: Histogram;
  readonly versions: Histogram;
  readonly stageSlots: Gauge<'stage' | 'state'>;
  readonly runtimeStarts: Gauge<'backend' | 'state'>;
  readonly tokens: Counter<Place | 'kind'>;
  readonly links: Counter<Place | 'link'>;
  readonly drift: Counter<Place | 'drift'>;
  readonly excluded: Counter<Place | 'reason'>;
  readonly leaked: Counter<'when'>;
  readonly recovered: Counter<'outcome'>;
  readonly damaged: Counter;
};

/** Where tokens come from. */
type Place = 'harness' | 'dialect' | 'engine';
const PLACE: readonly Place[] = ['harness', 'dialect', 'engine'];

/** A session's audit for one dialect and engine. `exact`: trained in the context that they were sampled in. */
export type PlaceTally = {
  readonly dialect: string;
  readonly engineId: string;
  readonly sampled: number;
  readonly trained: number;
  readonly exact: number;
  readonly excluded: Readonly<Record<string, number>>;
  readonly links: Readonly<Record<string, number>>;
  readonly drift: Readonly<Record<string, number>>;
};

/** The gateway's metric set. Labels are bounded: never an id of a session, task or key. */
export function createGatewayMetrics(): GatewayMetrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const registers = [registry];
  return {
    registry,
    calls: new CallMetrics(registry),
    sessions: new Counter({
      name: 'floe_sessions_total',
      help: 'Sessions that ended on this node, by outcome',
      labelNames: ['outcome'],
      registers,
    }),
    stageSeconds: new Histogram({
      name: 'floe_stage_seconds',
      help: 'Active time of one session in one stage',
      labelNames: ['stage'],
      buckets: STAGE_SECONDS,
      registers,
    }),
    queueWait: new Histogram({
      name: 'floe_queue_wait_seconds',
      help: 'Time of one session without a worker: queued at the server, ready, or before postrun',
      labelNames: ['stage'],
      buckets: STAGE_SECONDS,
      registers,
    }),
    traces: new Histogram({
      name: 'floe_traces_per_session',
      help: 'Traces that the builder made of a session',
      buckets: TRACE_COUNTS,
      registers,
    }),
    versions: new Histogram({
      name: 'floe_staleness_versions',
      help: 'Policy versions that the tokens of one session were sampled by',
      buckets: VERSION_COUNTS,
      registers,
    }),
    stageSlots: new Gauge({
      name: 'floe_stage_slots',
      help: 'Slots of each stage pool: used, size, waiting',
      labelNames: ['stage', 'state'],
      registers,
    }),
    runtimeStarts: new Gauge({
      name: 'floe_runtime_starts',
      help: 'Sandboxes that are starting, and those that wait for a turn, by back end',
      labelNames: ['backend', 'state'],
      registers,
    }),
    tokens: new Counter({
      name: 'floe_tokens_total',
      help: 'Tokens of finished sessions: sampled, trained, and exact, which are trained in the context they were sampled in',
      labelNames: [...PLACE, 'kind'],
      registers,
    }),
    links: new Counter({
      name: 'floe_completion_links_total',
      help: 'How completions continue earlier ones',
      labelNames: [...PLACE, 'link'],
      registers,
    }),
    drift: new Counter({
      name: 'floe_completion_drift_total',
      help: 'Completions before which the assistant turn was rendered otherwise than it was sampled, by why',
      labelNames: [...PLACE, 'drift'],
      registers,
    }),
    excluded: new Counter({
      name: 'floe_tokens_excluded_total',
      help: 'Sampled tokens that are not trained, by reason',
      labelNames: [...PLACE, 'reason'],
      registers,
    }),
    leaked: new Counter({
      name: 'floe_sandbox_leaked_total',
      help: 'What was left of sandboxes and had to be reaped: at the start, after a dead gateway, or while running',
      labelNames: ['when'],
      registers,
    }),
    recovered: new Counter({
      name: 'floe_attempts_recovered_total',
      help: 'Attempts of dead gateways whose remains were handed in, or refused by the server',
      labelNames: ['outcome'],
      registers,
    }),
    damaged: new Counter({
      name: 'floe_journal_damaged_records_total',
      help: 'Records of dead gateways that are damaged; their files are kept in the quarantine directory',
      registers,
    }),
  };
}

/** Counts a session that has been delivered. `tallies` are its audit, by where the tokens come from; `versions`: how many policies sampled it. */
export function recordSession(
  metrics: GatewayMetrics,
  harness: string,
  summary: SessionSummary,
  tallies: readonly PlaceTally[],
  versions: number,
): void {
  const { timing } = summary;
  metrics.sessions.inc({ outcome: summary.outcome });
  const stages = { init: timing.init_ms, running: timing.running_ms, eval: timing.eval_ms, postrun: timing.postrun_ms };
  for (const [stage, ms] of Object.entries(stages)) if (ms !== null) metrics.stageSeconds.observe({ stage }, ms / 1000);
  const waits = { queued: timing.queued_ms, ready: timing.ready_ms, postrun: timing.postrun_queue_ms };
  for (const [stage, ms] of Object.entries(waits)) if (ms !== null) metrics.queueWait.observe({ stage }, ms / 1000);
  metrics.traces.observe(summary.trace_count);
  metrics.versions.observe(versions);
  for (const { dialect, engineId, sampled, trained, exact, links, drift, excluded } of tallies) {
    const place = { harness, dialect, engine: engineId };
    for (const [kind, count] of Object.entries({ sampled, trained, exact }))
      metrics.tokens.inc({ ...place, kind }, count);
    for (const [link, count] of Object.entries(links)) metrics.links.inc({ ...place, link }, count);
    for (const [name, count] of Object.entries(drift)) metrics.drift.inc({ ...place, drift: name }, count);
    for (const [reason, count] of Object.entries(excluded)) metrics.excluded.inc({ ...place, reason }, count);
  }
}
