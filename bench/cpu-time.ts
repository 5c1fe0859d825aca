import { median } from './report.ts';

/**
 * Returns the CPU time of one call of `work` in ms, as the median of `runs` calls after `warmUp` further ones. It is the time of the whole
 * process, including the garbage collector's threads.
 */
export function medianCpuMs(work: () => unknown, warmUp: number, runs: number): number {
  for (let i = 0; i < warmUp; i++) work();
  const times: number[] = [];
  for (let i = 0; i < runs; i++) {
    const start = process.cpuUsage();
    work();
    const { user, system } = process.cpuUsage(start);
    times.push((user + system) / 1_000);
  }
  return median(times) ?? 0;
}
