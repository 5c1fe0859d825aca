import type { SessionSummary } from '@floe-rl/core/schema';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/**
 * Histogram buckets for the duration of a session's stages, in seconds: from milliseconds (a no-op harness) to hours (a long agent run).
 */
const STAGE_SECONDS = [0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3600, 14_400];
/**
 * Histogram buckets for the number of traces of a session. A session has one trace when its harness only appends to the conversation, and
 * more with sub-agents or rewritten histories.
 */
const TRACE_COUNTS = [0, 1, 2, 3, 5, 10, 20, 50, 100];
/**
 * Histogram buckets for the number of policy versions that sampled a session. It is one with a synchronous trainer, and more when weights
 * were updated while the session ran.
 */
const VERSION_COUNTS = [0, 1, 2, 3, 4, 6, 8, 16];

/**
 * Histogram buckets for the duration of model calls, in seconds: from a stub engine's immediate reply to a reply of many thousand tokens.
 */
const CALL_SECONDS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900];
/**
 * Histogram buckets for the time that the proxy adds to a model call, in seconds. It is a fraction of a millisecond, unless the call waits
 * or its prompt is rendered.
 */
const ADDED_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30];
/** Histogram buckets for the duration of disk syncs, in seconds: tens of microseconds on a good disk, seconds on a failing one. */
const SYNC_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5];
/**
 * Histogram buckets for the duration of sandbox starts, in seconds: a namespace starts in milliseconds, an image that must be fetched first
 * in minutes.
 */
const START_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300];
const MS_PER_SECOND = 1000;

/** A model call that has ended, as the proxy reports it. */
type MeasuredCall = {
  readonly dialect: string;
  /** Id of the engine that replied; `null` when none replied. */
  readonly engineId: string | null;
  /** `ok`, or the error code of the call. */
  readonly code: string;
  readonly totalMs: number;
  /** Duration of the engine call that replied; `null` when no engine replied. */
  readonly engineMs: number | null;
};

/** Metrics of model calls, of the journal in which the proxy records completions, and of sandboxes. */
class CallMetrics {
  private readonly requests: Counter<'dialect' | 'engine' | 'code'>;
  private readonly seconds: Histogram<'dialect' | 'engine'>;
  private readonly added: Histogram<'dialect'>;
  private readonly syncs: Histogram;
  private readonly journal: Gauge;
  private readonly starts: Histogram<'runtime'>;
  private readonly prepared: Counter<'how'>;
  private readonly reuse: Counter<'event'>;
  private readonly prewarmed: Counter<'how'>;
  private readonly kills: Counter<'runtime' | 'reason'>;

  constructor(registry: Registry) {
    const registers = [registry];
    this.requests = new Counter({
      name: 'floe_llm_requests_total',
      help: 'Model calls that ended, by `ok` or error code; engine `none` when no engine replied',
      labelNames: ['dialect', 'engine', 'code'],
      registers,
    });
    this.seconds = new Histogram({
      name: 'floe_llm_seconds',
      help: 'Time of an answered model call in the proxy, from the request until its completion is durable',
      labelNames: ['dialect', 'engine'],
      buckets: CALL_SECONDS,
      registers,
    });
    this.added = new Histogram({
      name: 'floe_llm_added_seconds',
      help: 'The part of floe_llm_seconds outside the engine call that replied: waiting, rendering, capture, journal',
      labelNames: ['dialect'],
      buckets: ADDED_SECONDS,
      registers,
    });
    this.syncs = new Histogram({
      name: 'floe_journal_sync_seconds',
      help: 'Time to write a batch of completions to disk and sync it',
      buckets: SYNC_SECONDS,
      registers,
    });
    this.journal = new Gauge({
      name: 'floe_journal_bytes',
      help: 'Size of the capture journal of this process: segments that hold completions of undelivered sessions',
      registers,
    });
    this.starts = new Histogram({
      name: 'floe_sandbox_start_seconds',
      help: 'Time to start a sandbox, without preparation and without waiting for a start slot',
      labelNames: ['runtime'],
      buckets: START_SECONDS,
      registers,
    });
    this.prepared = new Counter({
      name: 'floe_sandbox_prepared_total',
      help: 'Sandboxes of tasks with share_prepared: prepared with a snapshot kept, prepared alone, or started from a snapshot (reused)',
      labelNames: ['how'],
      registers,
    });
    this.reuse = new Counter({
      name: 'floe_sandbox_reuse_total',
      help: 'Sandboxes of tasks with runtime.reuse: started or reused by a session, ended because of a failed reset (reset_failed) or health check (unhealthy), or not needed any more (discarded)',
      labelNames: ['event'],
      registers,
    });
    this.prewarmed = new Counter({
      name: 'floe_sandbox_prewarmed_total',
      help: 'Sessions that could use a sandbox that was started in advance, by whether one was ready or missing',
      labelNames: ['how'],
      registers,
    });
    this.kills = new Counter({
      name: 'floe_sandbox_kills_total',
      help: 'Commands that floe killed: over the memory or process limit, past a deadline, or no longer needed',
      labelNames: ['runtime', 'reason'],
      registers,
    });
  }

  /** Counts a model call. Called for every call, so it must be fast. */
  readonly recordCall = ({ dialect, engineId, code, totalMs, engineMs }: MeasuredCall): void => {
    const engine = engineId ?? 'none';
    this.requests.inc({ dialect, engine, code });
    if (engineMs === null) return;
    this.seconds.observe({ dialect, engine }, totalMs / MS_PER_SECOND);
    this.added.observe({ dialect }, Math.max(0, totalMs - engineMs) / MS_PER_SECOND);
  };

  readonly recordSync = (tookMs: number): void => this.syncs.observe(tookMs / MS_PER_SECOND);

  readonly recordStart = (runtime: string, tookMs: number): void =>
    this.starts.observe({ runtime }, tookMs / MS_PER_SECOND);

  readonly recordPrepared = (how: string): void => this.prepared.inc({ how });

  readonly recordReuse = (event: string): void => this.reuse.inc({ event });

  readonly recordPrewarmed = (how: string): void => this.prewarmed.inc({ how });

  readonly recordKill = (runtime: string, reason: string): void => this.kills.inc({ runtime, reason });

  setJournalBytes(bytes: number): void {
    this.journal.set(bytes);
  }
}

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
  readonly tokens: Counter<TokenSource | 'kind'>;
  readonly links: Counter<TokenSource | 'link'>;
  readonly drift: Counter<TokenSource | 'drift'>;
  readonly excluded: Counter<TokenSource | 'reason'>;
  readonly processEnds: Counter;
  readonly engineSeconds: Counter<'harness'>;
  readonly sandboxSeconds: Counter<'harness'>;
  readonly cpuSeconds: Counter<'harness'>;
  readonly storedBytes: Counter<'harness'>;
  readonly leaked: Counter<'when'>;
  readonly recovered: Counter<'outcome'>;
  readonly damaged: Counter;
};

/** Labels that name the source of tokens: the harness, its dialect and the engine. */
type TokenSource = 'harness' | 'dialect' | 'engine';
const TOKEN_SOURCE: readonly TokenSource[] = ['harness', 'dialect', 'engine'];

/**
 * Token counts of a session's audit for one dialect and engine. `exact` counts the tokens that are trained in the context in which they
 * were sampled.
 */
type AuditTally = {
  readonly dialect: string;
  readonly engineId: string;
  readonly sampled: number;
  readonly trained: number;
  readonly exact: number;
  readonly excluded: Readonly<Record<string, number>>;
  readonly links: Readonly<Record<string, number>>;
  readonly drift: Readonly<Record<string, number>>;
};

/**
 * Creates the gateway's metrics. Label values never contain the id of a session, a task or a key, so that the number of series stays
 * bounded.
 */
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
      help: 'Time that one session waited for a worker: queued at the server, in READY, or before POSTRUN',
      labelNames: ['stage'],
      buckets: STAGE_SECONDS,
      registers,
    }),
    traces: new Histogram({
      name: 'floe_traces_per_session',
      help: 'Traces that the builder made from one session',
      buckets: TRACE_COUNTS,
      registers,
    }),
    versions: new Histogram({
      name: 'floe_staleness_versions',
      help: 'Policy versions that sampled the tokens of one session',
      buckets: VERSION_COUNTS,
      registers,
    }),
    stageSlots: new Gauge({
      name: 'floe_stage_slots',
      help: 'Slots of each stage pool by state: used, size, waiting',
      labelNames: ['stage', 'state'],
      registers,
    }),
    runtimeStarts: new Gauge({
      name: 'floe_runtime_starts',
      help: 'Sandboxes that are starting or waiting for a start slot, by runtime',
      labelNames: ['backend', 'state'],
      registers,
    }),
    tokens: new Counter({
      name: 'floe_tokens_total',
      help: 'Tokens of finished sessions by kind: sampled, trained, and exact (trained in the context that they were sampled in)',
      labelNames: [...TOKEN_SOURCE, 'kind'],
      registers,
    }),
    links: new Counter({
      name: 'floe_completion_links_total',
      help: 'Completions by how they continue an earlier one',
      labelNames: [...TOKEN_SOURCE, 'link'],
      registers,
    }),
    drift: new Counter({
      name: 'floe_completion_drift_total',
      help: 'Completions whose prompt renders the previous assistant turn differently from how it was sampled, by cause',
      labelNames: [...TOKEN_SOURCE, 'drift'],
      registers,
    }),
    excluded: new Counter({
      name: 'floe_tokens_excluded_total',
      help: 'Sampled tokens that are not trained, by reason',
      labelNames: [...TOKEN_SOURCE, 'reason'],
      registers,
    }),
    processEnds: new Counter({
      name: 'floe_node_process_ends_total',
      help: 'Processes of a node with several that ended unexpectedly; their sessions are retried',
      registers,
    }),
    engineSeconds: new Counter({
      name: 'floe_session_engine_seconds_total',
      help: 'Time that engines took for the calls of finished sessions, summed over calls',
      labelNames: ['harness'],
      registers,
    }),
    sandboxSeconds: new Counter({
      name: 'floe_session_sandbox_seconds_total',
      help: 'Time from the lease to the result of finished sessions that have a sandbox',
      labelNames: ['harness'],
      registers,
    }),
    cpuSeconds: new Counter({
      name: 'floe_session_cpu_seconds_total',
      help: 'CPU time of the gateway process that counts to finished sessions',
      labelNames: ['harness'],
      registers,
    }),
    storedBytes: new Counter({
      name: 'floe_session_stored_bytes_total',
      help: 'Bytes of the trajectories, records of completions and artifacts of finished sessions',
      labelNames: ['harness'],
      registers,
    }),
    leaked: new Counter({
      name: 'floe_sandbox_leaked_total',
      help: 'Sandbox remainders that had to be removed: at the start, after a dead gateway, or while running',
      labelNames: ['when'],
      registers,
    }),
    recovered: new Counter({
      name: 'floe_attempts_recovered_total',
      help: 'Attempts of dead gateways whose partial results were delivered to the server or rejected by it',
      labelNames: ['outcome'],
      registers,
    }),
    damaged: new Counter({
      name: 'floe_journal_damaged_records_total',
      help: 'Damaged records of dead gateways; their files are kept in the quarantine directory',
      registers,
    }),
  };
}

/**
 * Counts a delivered session. `tallies` are the token counts of its audit per dialect and engine. `versions` is the number of policy
 * versions that sampled it.
 */
export function recordSession(
  metrics: GatewayMetrics,
  harness: string,
  summary: SessionSummary,
  tallies: readonly AuditTally[],
  versions: number,
): void {
  const { timing, cost } = summary;
  if (cost !== null) {
    metrics.engineSeconds.inc({ harness }, cost.engine_ms / MS_PER_SECOND);
    metrics.sandboxSeconds.inc({ harness }, (cost.sandbox_ms ?? 0) / MS_PER_SECOND);
    metrics.cpuSeconds.inc({ harness }, cost.node_cpu_ms / MS_PER_SECOND);
    metrics.storedBytes.inc({ harness }, cost.stored_bytes);
  }
  metrics.sessions.inc({ outcome: summary.outcome });
  const stages = { init: timing.init_ms, running: timing.running_ms, eval: timing.eval_ms, postrun: timing.postrun_ms };
  for (const [stage, ms] of Object.entries(stages))
    if (ms !== null) metrics.stageSeconds.observe({ stage }, ms / MS_PER_SECOND);
  const waits = { queued: timing.queued_ms, ready: timing.ready_ms, postrun: timing.postrun_queue_ms };
  for (const [stage, ms] of Object.entries(waits))
    if (ms !== null) metrics.queueWait.observe({ stage }, ms / MS_PER_SECOND);
  metrics.traces.observe(summary.trace_count);
  metrics.versions.observe(versions);
  for (const { dialect, engineId, sampled, trained, exact, links, drift, excluded } of tallies) {
    const source = { harness, dialect, engine: engineId };
    for (const [kind, count] of Object.entries({ sampled, trained, exact }))
      metrics.tokens.inc({ ...source, kind }, count);
    for (const [link, count] of Object.entries(links)) metrics.links.inc({ ...source, link }, count);
    for (const [name, count] of Object.entries(drift)) metrics.drift.inc({ ...source, drift: name }, count);
    for (const [reason, count] of Object.entries(excluded)) metrics.excluded.inc({ ...source, reason }, count);
  }
}
