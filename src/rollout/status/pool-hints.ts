import type { NodeInfo, RolloutStatus, StageMeans } from '../../schema/index.ts';

type Hint = RolloutStatus['hints'][number];

/** Fewer sessions say little of the means. */
const MIN_SAMPLES = 20;

/**
 * Pools that are too small for the RUN workers of their node: a stage keeps up when its workers are to those of RUN as its mean
 * duration is to RUN's. Only nodes that dispatch in a pipeline have use for it.
 */
export function poolHints(nodes: readonly NodeInfo[], { samples, ...means }: StageMeans): Hint[] {
  const { running_ms: runMs } = means;
  if (samples < MIN_SAMPLES || runMs === null || runMs <= 0) return [];
  const stages = [
    { setting: 'max_init_workers', stage: 'INIT', ms: means.init_ms ?? 0 },
    { setting: 'max_postrun_workers', stage: 'POSTRUN', ms: means.postrun_ms ?? 0 },
  ] as const;
  return nodes
    .filter((node) => node.dispatch_policy === 'pipeline')
    .flatMap((node) =>
      stages.flatMap(({ setting, stage, ms }): Hint[] => {
        const suggested = Math.ceil((node.max_run_workers * ms) / runMs);
        const value = node[setting];
        if (value >= suggested) return [];
        const why = `${node.max_run_workers} RUN workers of ${seconds(runMs)} each need ${suggested} in ${stage}, where a session is for ${seconds(ms)}`;
        return [{ node_id: node.node_id, setting, value, suggested, why }];
      }),
    );
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 0)} s`;
}
