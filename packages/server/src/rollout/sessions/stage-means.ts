import type { StageMeans as Means, SessionTiming } from '@floe-rl/core/schema';

/**
 * Smallest weight of one session in the mean durations, so that the means adapt within a few hundred sessions when the durations change.
 */
const MIN_WEIGHT = 0.01;

const STAGES = ['init_ms', 'running_ms', 'postrun_ms'] as const;

/** The mean time that sessions delivered to this server spent in each stage. The server suggests worker pool sizes from these means. */
export class StageMeans {
  private samples = 0;
  private readonly means = new Map<(typeof STAGES)[number], number>();

  /** Adds the stage durations of a session that went through all stages. A session that skipped a stage is ignored. */
  observe(timing: SessionTiming): void {
    if (STAGES.some((stage) => timing[stage] === null)) return;
    this.samples++;
    const weight = Math.max(1 / this.samples, MIN_WEIGHT);
    for (const stage of STAGES) {
      const ms = timing[stage] ?? 0;
      const mean = this.means.get(stage) ?? ms;
      this.means.set(stage, mean + (ms - mean) * weight);
    }
  }

  /** Returns the mean times in milliseconds; each is `null` before the first session was added. */
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
