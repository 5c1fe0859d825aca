import type { EngineSpec } from '@floe-rl/core/schema';
import { BatchingEngine, type Timeline } from './batching-engine.ts';

/** False reports of an engine about its load. */
export const LIES = ['nonsense', 'always overloaded', 'always idle'] as const;
export type Lie = (typeof LIES)[number];

/** An engine that works as any other, but whose metrics lie about its load. */
export class LyingEngine extends BatchingEngine {
  private readonly lie: Lie;
  private readings = 0;

  constructor(lie: Lie, spec: EngineSpec, timeline: Timeline, kvBlocks: number) {
    super(spec, timeline, 1, kvBlocks);
    this.lie = lie;
  }

  override async metrics(): Promise<string> {
    this.readings++;
    return this.report()
      .map(([name, value]) => `vllm:${name} ${value}`)
      .join('\n');
  }

  private report(): (readonly [name: string, value: string | number])[] {
    switch (this.lie) {
      case 'nonsense':
        return [
          ['kv_cache_usage_perc', 'NaN'],
          ['num_requests_running', -5],
          ['num_requests_waiting', '1e30'],
          ['num_preemptions_total', this.readings % 2 === 0 ? '+Inf' : 'many'],
        ];
      case 'always overloaded':
        return [
          ['kv_cache_usage_perc', 1],
          ['num_requests_running', 1],
          ['num_requests_waiting', 100_000],
          ['num_preemptions_total', this.readings * 1_000],
        ];
      case 'always idle':
        return [
          ['kv_cache_usage_perc', 0],
          ['num_requests_running', 0],
          ['num_requests_waiting', 0],
          ['num_preemptions_total', 0],
        ];
    }
  }
}
