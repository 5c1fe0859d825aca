// Rewards of a policy while it learns, as a table and as a text curve.
import type { SessionResult } from '@floe-rl/core/schema';

/** Mean reward of the sessions of one range of optimizer steps. The oldest policy version of a session decides its range. */
export type CurvePoint = { readonly fromStep: number; readonly sessions: number; readonly reward: number };

/** Number of points of a curve. */
const POINTS = 10;
const BAR_WIDTH = 40;

/** The optimizer step at the end of a version's name. */
function stepOf(version: string): number {
  return Number(/\d+$/.exec(version)?.[0]);
}

/** Divides sessions into ranges of steps and averages their rewards. Sessions without a reward or without a known version are left out. */
export function rewardCurve(results: readonly SessionResult[], steps: number): CurvePoint[] {
  const width = Math.max(1, Math.ceil((steps + 1) / POINTS));
  const rewards = new Map<number, number[]>();
  for (const { reward, trajectory } of results) {
    const spans = (trajectory?.traces ?? []).flatMap(({ version_spans }) => version_spans);
    const known = spans.flatMap(({ version }) => (version === null ? [] : [stepOf(version)]));
    if (reward === null || known.length === 0) continue;
    const from = Math.floor(Math.min(...known) / width) * width;
    rewards.set(from, [...(rewards.get(from) ?? []), reward]);
  }
  return [...rewards]
    .sort(([a], [b]) => a - b)
    .map(([fromStep, values]) => ({ fromStep, sessions: values.length, reward: mean(values) }));
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

export function printCurve(name: string, curve: readonly CurvePoint[]): void {
  console.log(`${name}: mean reward of all sessions by the step of their oldest weights`);
  for (const { fromStep, sessions, reward } of curve) {
    const bar = '█'.repeat(Math.round(reward * BAR_WIDTH));
    console.log(
      `  step ${String(fromStep).padStart(3)}  ${reward.toFixed(2)}  ${bar.padEnd(BAR_WIDTH)}  ${sessions} sessions`,
    );
  }
}
