import { isInformative, type Sample } from './workload.ts';

export type Plan = { readonly workers: number; readonly batchGroups: number; readonly batches: number };

/**
 * Returns the duration in ms of dynamic sampling batch by batch, as verl does it. A batch of prompts is sampled whole, and its uninformative
 * groups are dropped. Further batches are sampled until there are enough groups. Surplus groups are dropped too.
 */
export function batchByBatchMs(groupOf: (index: number) => readonly Sample[], plan: Plan): number {
  let next = 0;
  let totalMs = 0;
  for (let batch = 0; batch < plan.batches; batch++) {
    for (let informative = 0; informative < plan.batchGroups; ) {
      const groups = Array.from({ length: plan.batchGroups }, () => groupOf(next++));
      totalMs += makespanMs(groups.flat(), plan.workers);
      informative += groups.filter(isInformative).length;
    }
  }
  return totalMs;
}

/**
 * Returns the least time in ms for making all batches. It is the time for sampling groups in order until there are enough informative groups,
 * with every worker busy until the last moment.
 */
export function optimumMs(groupOf: (index: number) => readonly Sample[], plan: Plan): number {
  let work = 0;
  for (let index = 0, informative = 0; informative < plan.batchGroups * plan.batches; index++) {
    const group = groupOf(index);
    work += group.reduce((sum, { ms }) => sum + ms, 0);
    if (isInformative(group)) informative += 1;
  }
  return work / plan.workers;
}

/** The time until all samples have ended when each worker takes the next sample as soon as it is free. */
function makespanMs(samples: readonly Sample[], workers: number): number {
  const freeAt = new Float64Array(workers);
  for (const { ms } of samples) {
    let earliest = 0;
    for (let worker = 1; worker < workers; worker++) {
      if ((freeAt[worker] ?? 0) < (freeAt[earliest] ?? 0)) earliest = worker;
    }
    freeAt[earliest] = (freeAt[earliest] ?? 0) + ms;
  }
  return Math.max(...freeAt);
}
