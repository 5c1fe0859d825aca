import { writeFileSync } from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { samplingSchema, type TaskEngine } from '../../src/schema/index.ts';
import { FAULT_KINDS, type LedgerCheckOptions } from '../../src/sim/index.ts';
import { DIALECT_CLIENTS } from '../golden/dialect-clients.ts';
import { MODES, type Mode, taskEngineOf } from '../golden/modes.ts';
import { Golden } from '../golden/session.ts';
import { Dice } from './dice.ts';
import { add, emptyMeasure, type Measure, measure } from './measure.ts';
import { RANDOM_SCENARIOS, RandomAgent } from './random-agent.ts';

/**
 * Number of tokens to sample in each mode. A few thousand suffice to run every branch of the code; the verification program of the same
 * name samples a million.
 */
const TOKENS = Number(process.env.FLOE_FIDELITY_TOKENS ?? 20_000);
/** Path of the file to which the figures are written as JSON; no file is written when it is not set. */
const REPORT = process.env.FLOE_FIDELITY_REPORT;
const SEED = Number(process.env.FLOE_FIDELITY_SEED ?? 1);

/** Number of sessions that run concurrently, so that calls of different sessions interleave. */
const CONCURRENT_SESSIONS = 6;

/** The faults that the engine has with a small probability. A faulty reply is refused or repeated, and must not affect any other reply. */
const FAULTS = FAULT_KINDS.filter((kind) =>
  [
    'foreign_ids',
    'logprob_nan',
    'usage_mismatch',
    'http_500',
    'error_body_200',
    'abort',
    'malformed_tool_call',
  ].includes(kind),
);

/** The builder configurations to compare: floe's default, and that of Polar, which merges every re-rendered turn. */
const BUILDS = { auto: {}, polar: { on_drift: 'merge' } } as const;

const figures: Record<string, Record<keyof typeof BUILDS, Measure>> = {};
afterAll(() => {
  if (REPORT !== undefined) writeFileSync(REPORT, JSON.stringify(figures));
});

describe.each(MODES.map((mode) => ({ mode, name: mode.name })))('sessions of random harnesses, $name', ({ mode }) => {
  it('train every token once and as it was sampled', async () => {
    const golden = await Golden.start(mode, {
      scenarios: [...RANDOM_SCENARIOS],
      maxModelLen: 131_072,
      ledgerLimit: 200_000,
    });
    const totals = { auto: emptyMeasure(), polar: emptyMeasure() };
    const problems: string[] = [];
    try {
      let seed = SEED * 100_000;
      while (totals.auto.sampled < TOKENS) {
        golden.sim.setFaults(FAULTS.map((kind) => ({ kind, probability: 0.004 })));
        const played = Array.from({ length: CONCURRENT_SESSIONS }, () => play(golden, mode, ++seed, totals, problems));
        golden.sim.updateWeights(`v${seed}`);
        await Promise.all(played);
      }
    } finally {
      await golden.close();
    }
    figures[mode.name] = totals;
    expect(problems.slice(0, 10)).toEqual([]);
    const { auto } = totals;
    expect(auto).toMatchObject({ mismatches: 0, trained_twice: 0, unaccounted: 0 });
    expect(auto.trained).toBeGreaterThan(auto.sampled / 2);
    // Most tokens have a known version. Only those of a reply during a weight update may have none.
    expect(auto.unknown_version).toBeLessThan(auto.trained / 2);
    if (mode.tokens) expect(auto.exact).toBe(auto.trained);
  });
});

/**
 * Returns how versions are checked. In chat mode vLLM reports only the versions before and after a call, so the versions of a reply during
 * an update are unknown.
 */
function versionsOf({ name }: Mode): LedgerCheckOptions {
  return name === 'vllm chat' ? { unknownVersions: 'allow' } : {};
}

async function play(
  golden: Golden,
  mode: Mode,
  seed: number,
  totals: Record<keyof typeof BUILDS, Measure>,
  problems: string[],
): Promise<void> {
  const dice = new Dice(seed);
  const client = dice.pick(DIALECT_CLIENTS as [(typeof DIALECT_CLIENTS)[number], ...typeof DIALECT_CLIENTS]);
  const stream = dice.chance(0.5);
  const retention = dice.pick<TaskEngine['thinking_retention']>(['template', 'tool_cycle', 'all']);
  const bound = dice.chance(0.2) ? dice.between(30, 280) : null;
  const session = await golden.open(client, stream, {
    engine: taskEngineOf(mode, retention),
    sampling: samplingSchema.parse({ max_tokens: bound, temperature: dice.pick([1, 0.7]) }),
  });
  await new RandomAgent(session, client, dice).run(dice.between(3, 14));
  await session.session.close();
  const graphOptions = await session.graphOptions();
  for (const name of Object.keys(BUILDS) as (keyof typeof BUILDS)[]) {
    const { measure: one, problems: found } = measure(session, graphOptions, BUILDS[name], versionsOf(mode));
    add(totals[name], one);
    problems.push(...found.map((text) => `seed ${seed}, ${client.dialect}, ${name}: ${text}`));
  }
}
