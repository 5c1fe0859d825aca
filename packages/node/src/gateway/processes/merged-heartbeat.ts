import type { EngineInfo, Heartbeat, StageCounts } from '@floe-rl/core/schema';

type EngineReport = NonNullable<Heartbeat['engines']>;

const NO_SESSIONS: StageCounts = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

/** Returns the sums of the counts. Other fields are left out. */
export function sumOfStages(counts: readonly StageCounts[]): StageCounts {
  const sum = (key: keyof StageCounts): number => counts.reduce((total, one) => total + one[key], NO_SESSIONS[key]);
  return {
    init_inflight: sum('init_inflight'),
    ready_depth: sum('ready_depth'),
    run_inflight: sum('run_inflight'),
    postrun_queue_depth: sum('postrun_queue_depth'),
    postrun_inflight: sum('postrun_inflight'),
  };
}

/** Returns why a node accepts no sessions: the reason of its first worker when all workers refuse, otherwise `null`. */
export function commonRefusal(refusals: readonly (string | null)[]): string | null {
  return refusals.includes(null) ? null : (refusals[0] ?? null);
}

/**
 * Combines the engine reports of a node's workers. The node has applied what every worker has applied. An engine is usable if one worker
 * can use it, and has the calls and slots of all workers.
 */
export function mergeEngineReports(reports: readonly EngineReport[]): EngineReport | null {
  if (reports.length === 0) return null;
  return {
    revision: Math.min(...reports.map(({ revision }) => revision)),
    heard: Math.min(...reports.map(({ heard }) => heard)),
    info: mergeEngines(reports.map(({ info }) => info ?? [])),
    problems: firstOfEngine(reports.flatMap(({ problems }) => problems)),
    unpaused: firstOfEngine(reports.flatMap(({ unpaused }) => unpaused)),
  };
}

/** Combines the lists of engines of a node's workers. */
export function mergeEngines(lists: readonly (readonly EngineInfo[])[]): EngineInfo[] {
  const merged = new Map<string, EngineInfo>();
  for (const info of lists.flat()) {
    const other = merged.get(info.engine_id);
    merged.set(info.engine_id, other === undefined ? info : mergeEngine(other, info));
  }
  return [...merged.values()];
}

function mergeEngine(one: EngineInfo, other: EngineInfo): EngineInfo {
  const isLimited = one.max_concurrency !== null && other.max_concurrency !== null;
  const held = [one, other].flatMap(({ held_back_ms }) => held_back_ms ?? []);
  return {
    ...one,
    healthy: one.healthy || other.healthy,
    inflight: one.inflight + other.inflight,
    max_concurrency: isLimited ? (one.max_concurrency ?? 0) + (other.max_concurrency ?? 0) : null,
    ...(held.length === 0 ? {} : { held_back_ms: Math.min(...held) }),
  };
}

function firstOfEngine<T extends { readonly engine_id: string }>(entries: readonly T[]): T[] {
  return [...new Map(entries.toReversed().map((entry) => [entry.engine_id, entry])).values()];
}
