import { VirtualClock } from '@floe-rl/core';

/** Active time of one session in each stage, in ms. The time for which the session waits between the stages is not included. */
export type StageDurations = { readonly initMs: number; readonly runMs: number; readonly postrunMs: number };

/** Number of workers of each stage, summed over all nodes, and the number of READY slots, in which sessions wait between INIT and RUN. */
export type ReplayPools = {
  readonly init: number;
  readonly ready: number;
  readonly run: number;
  readonly postrun: number;
};

/** How a node admits sessions, as in the gateway setting `dispatch_policy`. */
export type ReplayPolicy = 'pipeline' | 'batch' | 'bounded_batch';

type Stage = keyof StageDurations;
const STAGES: readonly Stage[] = ['initMs', 'runMs', 'postrunMs'];

/**
 * Returns a time in ms that no schedule can undercut; 0 when there are no sessions. It is the largest of several lower bounds on the
 * makespan. One bound is the total duration of the longest session. Each stage gives another bound: its total work divided by its workers,
 * plus the shortest time that any session needs before the stage and after it.
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
 * Simulates the given sessions under a policy, in the given order and without any overhead. Returns the makespan in ms, from the start of
 * the first session to the end of the last one.
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
 * Returns the shortest makespan in ms of the policy `pipeline` over several session orders that usually give good schedules. It is at least
 * {@link makespanBound}.
 */
export function bestMakespan(sessions: readonly StageDurations[], pools: ReplayPools): number {
  const longestFirst = [...sessions].sort((a, b) => sumOf(b, STAGES) - sumOf(a, STAGES));
  const orders: readonly (readonly StageDurations[])[] = [
    sessions,
    longestFirst,
    [...sessions].sort((a, b) => b.runMs - a.runMs),
    [...sessions].sort(johnson),
    // An order that starts with the sessions with the shortest INIT, so that the first RUN workers wait as briefly as possible.
    movedToFront(longestFirst, (a, b) => a.initMs - b.initMs, pools.run),
    // Orders in which some sessions with a short RUN are moved to the end. There they fill idle RUN workers. Only some sessions are moved,
    // because INIT could not supply many short sessions fast enough at the end.
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

/**
 * Returns a copy of the list in which the `count` sessions that come first by `order` are at the end, in reverse order. All other sessions
 * keep their places.
 */
function movedToBack(sessions: readonly StageDurations[], order: Comparison, count: number): StageDurations[] {
  const last = [...sessions].sort(order).slice(0, count).reverse();
  const moved = new Set(last);
  return [...sessions.filter((session) => !moved.has(session)), ...last];
}

/**
 * Compares two sessions by Johnson's rule, which gives the optimal order of jobs on two machines. INIT and RUN together count as the first
 * machine, RUN and POSTRUN as the second.
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

/** Returns the makespan in ms when each worker takes the next session of the list and runs it through all stages. */
function listMakespan(sessions: readonly StageDurations[], workers: number): number {
  const free = new Array<number>(workers).fill(0);
  for (const session of sessions) {
    const soonest = free.indexOf(Math.min(...free));
    free[soonest] = (free[soonest] as number) + sumOf(session, STAGES);
  }
  return Math.max(...free);
}

/**
 * Returns the makespan in ms of a pipeline of the three stages, in which sessions are served in order of arrival. A session enters INIT
 * when an INIT worker is free and when READY or RUN will have a free place for it afterwards.
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
