import { median } from './report.ts';

/**
 * Returns the median CPU time of one call of `work` in ms over `runs` calls, after `warmUp` calls that are not measured. It is the time of the
 * whole process, including the garbage collector's threads.
 */
export function medianCpuMs(work: () => unknown, warmUp: number, runs: number): number {
  const [ms = 0] = mediansCpuMs([work], warmUp, runs);
  return ms;
}

/**
 * Returns the median CPU time of one call of each function, like {@link medianCpuMs}. The functions are called in turns, so that a slow moment
 * of the machine affects all of them.
 */
export function mediansCpuMs(works: readonly (() => unknown)[], warmUp: number, runs: number): number[] {
  for (let i = 0; i < warmUp; i++) for (const work of works) work();
  const times: number[][] = works.map(() => []);
  for (let i = 0; i < runs; i++) for (const [at, work] of works.entries()) times[at]?.push(cpuMsOf(work));
  return times.map((all) => median(all) ?? 0);
}

function cpuMsOf(work: () => unknown): number {
  const start = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1_000;
}
