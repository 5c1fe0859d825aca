import { policyStep } from '@floe-rl/core/protocol';
import type { SessionFacts } from '@floe-rl/core/schema';

/** A session as a bar on a time line. Times are Unix ms. */
export type Bar = {
  readonly session: SessionFacts;
  readonly startMs: number;
  readonly endMs: number;
  /**
   * How many steps older the policy of the first token is than the newest policy at the end of the session; `null` when a version names no
   * step.
   */
  readonly staleness: number | null;
  readonly stages: readonly Stage[];
};

export type Stage = {
  readonly name: 'INIT' | 'READY' | 'RUNNING' | 'POSTRUN';
  readonly startMs: number;
  readonly endMs: number;
};

/** The sessions of one place of a node, one after the other. */
export type Lane = { readonly node: string; readonly bars: readonly Bar[] };

/** Returns the bars of the sessions that reached a node, ordered by their start. `sessions` are in the order of the list: newest first. A session without stages has its whole time as one bar. */
export function barsOf(sessions: readonly SessionFacts[]): Bar[] {
  let newest: number | null = null;
  const bars = [...sessions]
    .reverse()
    .sort((a, b) => a.ended_ms - b.ended_ms)
    .flatMap((session): Bar[] => {
      const [first, last] = [stepOf(session.first_version), stepOf(session.version)];
      if (last !== null) newest = Math.max(newest ?? last, last);
      if (session.total_ms === null) return [];
      const startMs = session.ended_ms - session.total_ms;
      const staleness = first === null || newest === null ? null : newest - first;
      return [{ session, startMs, endMs: session.ended_ms, staleness, stages: stagesOf(session, startMs) }];
    });
  return bars.sort((a, b) => a.startMs - b.startMs);
}

function stepOf(version: string | null): number | null {
  return version === null ? null : policyStep(version);
}

/** Returns the stages of a session one after the other. A gap before POSTRUN is the wait for a worker of POSTRUN. */
function stagesOf(session: SessionFacts, startMs: number): Stage[] {
  const { init_ms, ready_ms, running_ms, postrun_ms, ended_ms: endMs } = session;
  const stages: Stage[] = [];
  let atMs = startMs;
  for (const [name, ms] of [
    ['INIT', init_ms],
    ['READY', ready_ms],
    ['RUNNING', running_ms],
  ] as const) {
    if (ms === null) continue;
    stages.push({ name, startMs: atMs, endMs: Math.min(endMs, atMs + ms) });
    atMs = Math.min(endMs, atMs + ms);
  }
  if (postrun_ms !== null) stages.push({ name: 'POSTRUN', startMs: Math.max(atMs, endMs - postrun_ms), endMs });
  return stages;
}

/** Puts bars into as few lanes of each node as possible, so that the bars of a lane do not overlap. `bars` are ordered by their start. */
export function lanesOf(bars: readonly Bar[]): Lane[] {
  const nodes = new Map<string, { node: string; bars: Bar[]; endMs: number }[]>();
  for (const bar of bars) {
    const node = bar.session.node_id ?? 'none';
    const lanes = nodes.get(node) ?? [];
    nodes.set(node, lanes);
    const free = lanes.find(({ endMs }) => endMs <= bar.startMs);
    if (free === undefined) lanes.push({ node, bars: [bar], endMs: bar.endMs });
    else {
      free.bars.push(bar);
      free.endMs = bar.endMs;
    }
  }
  return [...nodes.keys()].sort().flatMap((node) => nodes.get(node) ?? []);
}
