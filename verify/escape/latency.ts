import { systemClock } from '@floe-rl/core';
import type { Runtime } from '@floe-rl/sandbox';
import { percentile } from '../../bench/report.ts';

/** Returns the 99th percentile, in milliseconds, of a short command in these sandboxes, which run it again and again while `work` is unsettled. */
export async function latencyOf(runtimes: readonly Runtime[], work: Promise<unknown>): Promise<number> {
  let isOver = false;
  const over = work.then(
    () => {
      isOver = true;
    },
    () => {
      isOver = true;
    },
  );
  const times: number[] = [];
  const measure = async (runtime: Runtime): Promise<void> => {
    while (!isOver) {
      const startedMs = systemClock.monotonicMs();
      const { exitCode } = await runtime.exec({ command: ':' }, new AbortController().signal);
      if (exitCode !== 0) throw new Error(`a neighbour's command ended with ${exitCode}`);
      times.push(systemClock.monotonicMs() - startedMs);
    }
  };
  await Promise.all([over, ...runtimes.map(measure)]);
  return percentile(times, 0.99) ?? Number.NaN;
}
