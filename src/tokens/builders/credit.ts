import { z } from 'zod';
import type { BuiltTrace, Credit } from './builder.ts';

export const creditSchema = z
  .enum(['broadcast', 'divide'])
  .default('broadcast')
  .describe('the reward of a session: all of it to each of its traces, or divided equally among them');

export type Shares = {
  /** Among how many traces, or episodes of steps, the reward is divided; 1 where it is not. */
  readonly parts: number;
  /** What each trace gets; null: there is no reward. */
  readonly reward: number | null;
};

/**
 * Every trace counts the same, whatever its thread or kind, auxiliary ones as well when they are trained; the steps of one episode
 * count as one.
 */
export function sharesOf(traces: readonly BuiltTrace[], credit: Credit, reward: number | null): Shares {
  if (credit === 'broadcast') return { parts: 1, reward };
  const episodes = new Set(traces.flatMap((trace) => (trace.step === null ? [] : [trace.step.episode])));
  const alone = traces.filter((trace) => trace.step === null).length;
  const parts = Math.max(episodes.size + alone, 1);
  return { parts, reward: reward === null ? null : reward / parts };
}
