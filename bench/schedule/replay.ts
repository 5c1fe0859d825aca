import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** Active time of one session in each stage, in milliseconds, without the time that it waits. */
export type StageDurations = { readonly initMs: number; readonly runMs: number; readonly postrunMs: number };

/** Number of workers of each stage over all nodes, and the capacity of READY between INIT and RUN. */
export type ReplayPools = {
  readonly init: number;
  readonly ready: number;
  readonly run: number;
  readonly postrun: number;
};

/** The policy by which a node admits sessions; see its setting `dispatch_policy`. */
export type ReplayPolicy = 'pipeline' | 'batch' | 'bounded_batch';

type Stage = keyof StageDurations;
const STAGES: readonly Stage[] = ['initMs', 'runMs', 'postrunMs'];

/**
 * Returns a lower bound on the makespan of every schedule, in milliseconds; 0 when there are no sessions. The bound is the maximum of two
 * kinds of times: for each stage, the time in which its workers can do all of its work, plus the shortest time that a session needs before
 * and after this stage; and for each session, the sum of its own stages.
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
 * Replays measured durations under a policy, with the sessions in the given order and without any overhead. Returns the makespan in
 * milliseconds, from the start of the first session to the end of the last. The result is deterministic.
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

/**
 * Returns the shortest makespan of the policy `pipeline` over several orders that usually give good schedules. It is at least {@link
 * makespanBound}.
 */
export function bestMakespan(sessions: readonly StageDurations[], pools: ReplayPools): number {
  const longestFirst = [...sessions].sort((a, b) => sumOf(b, STAGES) - sumOf(a, STAGES));
  const orders: readonly (readonly StageDurations[])[] = [
    sessions,
    longestFirst,
    [...sessions].sort((a, b) => b.runMs - a.runMs),
    [...sessions].sort(johnson),
    // This variant starts with the sessions with the shortest INIT, so that the first RUN workers wait as briefly as possible.
    movedToFront(longestFirst, (a, b) => a.initMs - b.initMs, pools.run),
    // Variants that move the sessions with the shortest RUN to the end, where they fill idle slots. Only some are moved: if all sessions
    // were sorted by RUN, INIT could not supply the many short ones at the end fast enough.
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

/** Moves the first `count` sessions in `order` to the end of the list, in the opposite order. */
function movedToBack(sessions: readonly StageDurations[], order: Comparison, count: number): StageDurations[] {
  const last = [...sessions].sort(order).slice(0, count).reverse();
  const moved = new Set(last);
  return [...sessions.filter((session) => !moved.has(session)), ...last];
}

/**
 * Compares two sessions by Johnson's rule, which gives the optimal order for two machines. The first two and the last two stages are
 * treated as the machines.
 */
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

/** Returns the makespan when each worker runs one session at a time through all stages, in the order of the list. */
function listMakespan(sessions: readonly StageDurations[], workers: number): number {
  const free = new Array<number>(workers).fill(0);
  for (const session of sessions) {
    const soonest = free.indexOf(Math.min(...free));
    free[soonest] = (free[soonest] as number) + sumOf(session, STAGES);
  }
  return Math.max(...free);
}

/**
 * Returns the makespan of the three stages, whose queues are in order of arrival. A session enters INIT when an INIT worker is free and
 * READY or RUN will have capacity for it afterwards.
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
