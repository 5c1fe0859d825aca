// One run of examples/learn-sim against a floe of its own, with or without sabotage of the trainer's data.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { abortAfter, raceAbort, seededRandom, systemClock } from '@floe-rl/core';
import { loadScenarios, startSim } from '@floe-rl/sim';
import { batchesOf, type NextBatch } from '../../examples/learn-sim/batches.ts';
import { type Step, train } from '../../examples/learn-sim/learn.ts';
import { startFloe } from '../runner/floe.ts';
import { trainInPython } from './python.ts';
import type { Sabotage } from './sabotage.ts';

/** Gradient steps of a run. An honest trainer needs about six. */
export const STEPS = 10;
/** Maximum duration of a run in ms. Most runs take a few minutes, but the machine may be busy. */
const RUN_MS = 3_600_000;
/** Number of steps at the beginning, and at the end, of a run whose rewards are averaged. Two steps have 64 sessions. */
const AVERAGED_STEPS = 2;

export type Plan = {
  readonly harness: string;
  /** The Python program that runs the trainer in Python; `null` for the trainer in TypeScript, in this process. */
  readonly python: string | null;
  readonly seed: number;
  /** `null` for an honest run. Only the trainer in TypeScript can be sabotaged. */
  readonly sabotage: Sabotage | null;
};

export type Run = Plan & {
  readonly steps: readonly Step[];
  readonly seconds: number;
  /**
   * Mean rewards of the sessions of the first two steps and of the last two steps. The untrained policy ran the sessions of the first two
   * steps.
   */
  readonly rewardStart: number;
  readonly rewardEnd: number;
};

/**
 * Runs one plan. The simulated engine is in this process, server and node are in a process of their own, as a user starts them. Throws when a
 * run exceeds its time or a part of it fails.
 */
export async function runPlan(plan: Plan, onStep: (step: Step) => void): Promise<Run> {
  const startMs = systemClock.monotonicMs();
  const dir = mkdtempSync(join(tmpdir(), 'floe-learn-'));
  const limit = abortAfter(systemClock, RUN_MS, () => new Error(`the run took more than ${RUN_MS / 1000} s`));
  const sim = await startSim({
    scenarios: await loadScenarios(['examples/learn-sim/scenario.yaml']),
    scaleOut: true,
    seed: plan.seed,
  });
  try {
    const floe = await startFloe(dir, ['--engine', sim.url]);
    const { client, url, token } = floe;
    try {
      const training =
        plan.python === null
          ? train(client, sim.url, sabotaged(await batchesOf(client, plan.harness), plan), STEPS)
          : trainInPython(plan.python, { url, token, harness: plan.harness, steps: STEPS });
      const steps: Step[] = [];
      for (;;) {
        const next = await raceAbort(training.next(), limit.signal);
        if (next.done === true) break;
        steps.push(next.value);
        onStep(next.value);
      }
      return {
        ...plan,
        steps,
        seconds: (systemClock.monotonicMs() - startMs) / 1000,
        rewardStart: meanReward(steps.slice(0, AVERAGED_STEPS)),
        rewardEnd: meanReward(steps.slice(-AVERAGED_STEPS)),
      };
    } finally {
      await floe.stop();
    }
  } finally {
    limit.release();
    await sim.close();
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Returns `nextBatch` with the sabotage of the plan applied to each batch. */
function sabotaged(nextBatch: NextBatch, { sabotage, seed }: Plan): NextBatch {
  if (sabotage === null) return nextBatch;
  const random = seededRandom(seed);
  return async (version) => sabotage.apply(await nextBatch(version), random);
}

function meanReward(steps: readonly Step[]): number {
  const sessions = steps.reduce((sum, step) => sum + step.sessions, 0);
  return steps.reduce((sum, step) => sum + step.meanReward * step.sessions, 0) / sessions;
}
