import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { SessionSummary } from '../schema/index.ts';

/** Spans a stage of a few milliseconds (no-op harness) to one of hours (a long agent run). */
const STAGE_SECONDS = [0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3600, 14_400];

export type GatewayMetrics = {
  readonly registry: Registry;
  readonly sessions: Counter<'outcome'>;
  readonly stageSeconds: Histogram<'stage'>;
  readonly stageSlots: Gauge<'stage' | 'state'>;
  readonly tokens: Counter<'kind'>;
  readonly links: Counter<'harness' | 'link'>;
  readonly excluded: Counter<'harness' | 'reason'>;
};

/** The gateway's metric set. Labels are bounded: never an id of a session, task or key. */
export function createGatewayMetrics(): GatewayMetrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const registers = [registry];
  return {
    registry,
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
    stageSlots: new Gauge({
      name: 'floe_stage_slots',
      help: 'Slots of each stage pool: used, size, waiting',
      labelNames: ['stage', 'state'],
      registers,
    }),
    tokens: new Counter({
      name: 'floe_tokens_total',
      help: 'Tokens of finished sessions: sampled, trained',
      labelNames: ['kind'],
      registers,
    }),
    links: new Counter({
      name: 'floe_completion_links_total',
      help: 'How completions continue earlier ones',
      labelNames: ['harness', 'link'],
      registers,
    }),
    excluded: new Counter({
      name: 'floe_tokens_excluded_total',
      help: 'Sampled tokens that are not trained, by reason',
      labelNames: ['harness', 'reason'],
      registers,
    }),
  };
}

/** Counts a session that has been delivered. */
export function recordSession(metrics: GatewayMetrics, harness: string, summary: SessionSummary): void {
  const { audit, timing } = summary;
  metrics.sessions.inc({ outcome: summary.outcome });
  const stages = { init: timing.init_ms, running: timing.running_ms, eval: timing.eval_ms, postrun: timing.postrun_ms };
  for (const [stage, ms] of Object.entries(stages)) if (ms !== null) metrics.stageSeconds.observe({ stage }, ms / 1000);
  if (audit === null) return;
  metrics.tokens.inc({ kind: 'sampled' }, audit.tokens.sampled);
  metrics.tokens.inc({ kind: 'trained' }, audit.tokens.trained);
  for (const [link, count] of Object.entries(audit.links)) metrics.links.inc({ harness, link }, count);
  for (const [reason, count] of Object.entries(audit.tokens.excluded)) metrics.excluded.inc({ harness, reason }, count);
}
