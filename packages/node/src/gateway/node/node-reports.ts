import type { CaptureJournal, EnginePools } from '@floe-rl/capture';
import type { EngineInfo, NodeStageMetrics } from '@floe-rl/core/schema';
import type { GatewayMetrics } from '@floe-rl/observe';
import type { Registry } from 'prom-client';
import type { Attempt } from '../session/attempt.ts';
import type { Sandboxes } from '../session/sandbox.ts';
import type { GatewayConfig } from './config.ts';
import type { NodeAgent } from './node-agent.ts';
import type { StagePools } from './stage-pools.ts';

/** The state of a node for operators, as `GET /status` of its control listener returns it. */
export type NodeStatus = Pick<GatewayConfig, 'node_id' | 'pools' | 'dispatch_policy'> & {
  readonly metrics: NodeStageMetrics;
  readonly starts: Readonly<Record<string, { readonly starting: number; readonly waiting: number }>>;
  readonly engines: readonly EngineInfo[];
  readonly sessions: readonly ReturnType<Attempt['progress']>[];
};

/** Reports of a node to operators. */
export type NodeReports = {
  status(): Promise<NodeStatus>;
  /** Returns the metrics with their current values. */
  registry(): Promise<Registry>;
  /** Returns the metrics of all engines in Prometheus text. */
  engineMetrics(): Promise<string>;
};

type ReportedParts = {
  readonly agent: Pick<NodeAgent, 'live'>;
  readonly engines: Pick<EnginePools, 'info' | 'metrics'>;
  readonly pools: Pick<StagePools, 'policy' | 'sizes' | 'metrics'>;
  readonly sandboxes: Pick<Sandboxes, 'startCounts'>;
  readonly journal: Pick<CaptureJournal, 'bytes'>;
  readonly metrics: GatewayMetrics;
};

/** Returns the reports of the node in this process. */
export function nodeReports({ node_id, pools: sizes }: GatewayConfig, parts: ReportedParts): NodeReports {
  return {
    status: async () => ({
      node_id,
      pools: sizes,
      dispatch_policy: parts.pools.policy,
      metrics: parts.pools.metrics(),
      starts: Object.fromEntries(parts.sandboxes.startCounts()),
      engines: parts.engines.info(),
      sessions: parts.agent.live().map((attempt) => attempt.progress()),
    }),
    registry: async () => {
      updateMetrics(parts);
      return parts.metrics.registry;
    },
    engineMetrics: () => parts.engines.metrics(),
  };
}

/** Copies the current counts into the gauges that are not updated on each event, so that a metrics scrape returns fresh values. */
function updateMetrics({ pools, sandboxes, journal, metrics }: ReportedParts): void {
  metrics.calls.setJournalBytes(journal.bytes);
  const now = pools.metrics();
  const { sizes } = pools;
  const set = (stage: string, state: string, value: number): void => metrics.stageSlots.set({ stage, state }, value);
  set('init', 'used', now.init_inflight);
  set('init', 'size', sizes.init);
  set('ready', 'used', now.ready_depth);
  set('ready', 'size', sizes.ready);
  set('run', 'used', now.run_inflight);
  set('run', 'size', sizes.run);
  set('postrun', 'used', now.postrun_inflight);
  set('postrun', 'waiting', now.postrun_queue_depth);
  set('postrun', 'size', sizes.postrun);
  for (const [backend, { starting, waiting }] of sandboxes.startCounts()) {
    metrics.runtimeStarts.set({ backend, state: 'starting' }, starting);
    metrics.runtimeStarts.set({ backend, state: 'waiting' }, waiting);
  }
}
