import type { StageMeans as Means, SessionTiming } from '../../schema/index.ts';

/** A session counts at least this much: with a new policy the means follow within a few hundred sessions. */
const LEAST_WEIGHT = 0.01;

const STAGES = ['init_ms', 'running_ms', 'postrun_ms'] as const;

/** How long sessions that this server took are in each stage, to size pools by. */
export class StageMeans {
  private samples = 0;
  private readonly means = new Map<(typeof STAGES)[number], number>();

  /** Takes in a session that went through all stages; of others nothing is learned. */
  observe(timing: SessionTiming): void {
    if (STAGES.some((stage) => timing[stage] === null)) return;
    this.samples++;
    const weight = Math.max(1 / this.samples, LEAST_WEIGHT);
    for (const stage of STAGES) {
      const ms = timing[stage] ?? 0;
      const mean = this.means.get(stage) ?? ms;
      this.means.set(stage, mean + (ms - mean) * weight);
    }
  }

  current(): Means {
    const of = (stage: (typeof STAGES)[number]): number | null => this.means.get(stage) ?? null;
    return {
      samples: this.samples,
      init_ms: of('init_ms'),
      running_ms: of('running_ms'),
      postrun_ms: of('postrun_ms'),
    };
  }
}
