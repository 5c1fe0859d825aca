import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** Active time of one session in each stage, in milliseconds; waiting not counted. */
export type StageDurations = { readonly initMs: number; readonly runMs: number; readonly postrunMs: number };

/** Workers of each stage over all nodes, and places in READY between INIT and RUN. */
export type ReplayPools = {
  readonly init: number;
  readonly ready: number;
  readonly run: number;
  readonly postrun: number;
};

/** How sessions are let in; see `dispatch_policy` of a node. */
export type ReplayPolicy = 'pipeline' | 'batch' | 'bounded_batch';

type Stage = keyof StageDurations;
const STAGES: readonly Stage[] = ['initMs', 'runMs', 'postrunMs'];

/**
 * No schedule ends sooner: each stage has all its work done by its workers, before which somebody had to come through the stages
 * ahead and after which through those behind; and no session is faster than its own stages. 0 for no sessions.
 */
export function makespanBound(sessions: readonly StageDurations[], pools: ReplayPools): number {
  const workers = { initMs: pools.init, runMs: pools.run, postrunMs: pools.postrun };
  const least = (stages: readonly Stage[]): number =>
    sessions.reduce((low, session) => Math.min(low, sumOf(session, stages)), Number.POSITIVE_INFINITY);
  const bounds = STAGES.map((stage, i) => {
    const work = sessions.reduce((total, session) => total + session[stage], 0);
    return least(STAGES.slice(0, i)) + work / workers[stage] + least(STAGES.slice(i + 1));
  });
  const longest = sessions.reduce((high, session) => Math.max(high, sumOf(session, STAGES)), 0);
  return sessions.length === 0 ? 0 : Math.max(longest, ...bounds);
}

/**
 * Replays measured durations through a policy, sessions in the given order, as if nothing else took time. Returns the makespan in
 * milliseconds: from the first session's start to the last one's end. Deterministic.
 */
export function replayMakespan(
  sessions: readonly StageDurations[],
  pools: ReplayPools,
  policy: ReplayPolicy = 'pipeline',
): number {
  if (policy === 'bounded_batch') return listMakespan(sessions, pools.run);
  const inBatch = policy === 'batch' ? pools.run + pools.ready : sessions.length;
  let totalMs = 0;
  for (let first = 0; first < sessions.length; first += inBatch) {
    totalMs += flowMakespan(sessions.slice(first, first + inBatch), pools);
  }
  return totalMs;
}

/** The shortest makespan found: `pipeline` with each of the orders that are known to do well. At least {@link makespanBound}. */
export function bestMakespan(sessions: readonly StageDurations[], pools: ReplayPools): number {
  const longestFirst = [...sessions].sort((a, b) => sumOf(b, STAGES) - sumOf(a, STAGES));
  const orders: readonly (readonly StageDurations[])[] = [
    sessions,
    longestFirst,
    [...sessions].sort((a, b) => b.runMs - a.runMs),
    [...sessions].sort(johnson),
    // Whoever is through INIT soonest gives the first RUN workers something to do.
    movedToFront(longestFirst, (a, b) => a.initMs - b.initMs, pools.run),
    // Short ones fill the gaps at the end; longest first throughout would leave INIT behind with them.
    ...[1, 2, 4].map((each) => movedToBack(sessions, (a, b) => a.runMs - b.runMs, each * pools.run)),
  ];
  return Math.min(...orders.map((order) => replayMakespan(order, pools)));
}

type Comparison = (a: StageDurations, b: StageDurations) => number;

function movedToFront(sessions: readonly StageDurations[], order: Comparison, count: number): StageDurations[] {
  const first = [...sessions].sort(order).slice(0, count);
  const moved = new Set(first);
  return [...first, ...sessions.filter((session) => !moved.has(session))];
}

/** Those that come first in `order`, in the opposite order. */
function movedToBack(sessions: readonly StageDurations[], order: Comparison, count: number): StageDurations[] {
  const last = [...sessions].sort(order).slice(0, count).reverse();
  const moved = new Set(last);
  return [...sessions.filter((session) => !moved.has(session)), ...last];
}

/** Johnson's rule over the first and the last two stages, which is optimal for two machines. */
function johnson(a: StageDurations, b: StageDurations): number {
  const head = (session: StageDurations): number => session.initMs + session.runMs;
  const tail = (session: StageDurations): number => session.runMs + session.postrunMs;
  const early = (session: StageDurations): boolean => head(session) < tail(session);
  if (early(a) !== early(b)) return early(a) ? -1 : 1;
  return early(a) ? head(a) - head(b) : tail(b) - tail(a);
}

function sumOf(session: StageDurations, stages: readonly Stage[]): number {
  return stages.reduce((total, stage) => total + session[stage], 0);
}

/** Workers that each carry one session through all stages, the next one in order to the first that is free. */
function listMakespan(sessions: readonly StageDurations[], workers: number): number {
  const free = new Array<number>(workers).fill(0);
  for (const session of sessions) {
    const soonest = free.indexOf(Math.min(...free));
    free[soonest] = (free[soonest] as number) + sumOf(session, STAGES);
  }
  return Math.max(...free);
}

/**
 * First come, first served through the three stages. A session is let into INIT when a worker of it is free and, when it gets
 * there, it will have a place in READY or a RUN worker.
 */
function flowMakespan(sessions: readonly StageDurations[], pools: ReplayPools): number {
  const clock = new VirtualClock();
  const free = { initMs: pools.init, runMs: pools.run, postrunMs: pools.postrun };
  const waiting: Record<Stage, StageDurations[]> = { initMs: [...sessions].reverse(), runMs: [], postrunMs: [] };
  let endMs = 0;
  const begin = (stage: Stage, session: StageDurations): void => {
    free[stage]--;
    clock.schedule(session[stage], () => {
      free[stage]++;
      const next = STAGES[STAGES.indexOf(stage) + 1];
      if (next === undefined) endMs = clock.monotonicMs();
      else waiting[next].push(session);
      move();
    });
  };
  const move = (): void => {
    for (const stage of ['postrunMs', 'runMs'] as const) {
      while (free[stage] > 0 && waiting[stage].length > 0) begin(stage, waiting[stage].shift() as StageDurations);
    }
    const inInit = (): number => pools.init - free.initMs;
    while (free.initMs > 0 && inInit() + waiting.runMs.length < pools.ready + free.runMs) {
      const session = waiting.initMs.pop();
      if (session === undefined) break;
      begin('initMs', session);
    }
  };
  move();
  while (clock.fireNext());
  return endMs;
}
