import { writeFileSync } from 'node:fs';
import { afterAll, describe, expect, test } from 'vitest';
import { samplingSchema, type TaskEngine } from '../../src/schema/index.ts';
import { FAULT_KINDS, type LedgerCheckOptions } from '../../src/sim/index.ts';
import { MODES, type Mode, taskEngineOf } from '../golden/modes.ts';
import { Golden } from '../golden/session.ts';
import { SPEAKERS } from '../golden/speakers.ts';
import { Dice } from './dice.ts';
import { add, emptyMeasure, type Measure, measure } from './measure.ts';
import { RANDOM_SCENARIOS, RandomAgent } from './random-agent.ts';

/** Of each mode. A few thousand tokens look at every branch; `npm run fidelity` asks for a million in all. */
const TOKENS = Number(process.env.FLOE_FIDELITY_TOKENS ?? 20_000);
/** Where the figures go, as JSON. */
const REPORT = process.env.FLOE_FIDELITY_REPORT;
const SEED = Number(process.env.FLOE_FIDELITY_SEED ?? 1);

/** Sessions at a time: calls of different sessions lie between each other. */
const AT_ONCE = 6;

/** What an engine does now and then; each reply that it hits is refused or comes again, and no other is touched. */
const TROUBLE = FAULT_KINDS.filter((kind) =>
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

/** Ways to build the same sessions: floe's default, and what Polar does with every turn that was rendered anew. */
const BUILDS = { auto: {}, polar: { on_drift: 'merge' } } as const;

const figures: Record<string, Record<keyof typeof BUILDS, Measure>> = {};
afterAll(() => {
  if (REPORT !== undefined) writeFileSync(REPORT, JSON.stringify(figures));
});

describe.each(MODES.map((mode) => ({ mode, name: mode.name })))('random harnesses, $name', ({ mode }) => {
  test('train every token once, as it was sampled', async () => {
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
        golden.sim.setFaults(TROUBLE.map((kind) => ({ kind, probability: 0.004 })));
        const played = Array.from({ length: AT_ONCE }, () => play(golden, mode, ++seed, totals, problems));
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
    // What no update fell into has its version.
    expect(auto.unknown_version).toBeLessThan(auto.trained / 2);
    if (mode.tokens) expect(auto.exact).toBe(auto.trained);
  });
});

/** vLLM tells in chat only which version was there before and after; of a reply that an update fell into, none is known. */
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
  const speaker = dice.pick(SPEAKERS as [(typeof SPEAKERS)[number], ...typeof SPEAKERS]);
  const stream = dice.chance(0.5);
  const retention = dice.pick<TaskEngine['thinking_retention']>(['template', 'tool_cycle', 'all']);
  const bound = dice.chance(0.2) ? dice.between(30, 280) : null;
  const session = await golden.open(speaker, stream, {
    engine: taskEngineOf(mode, retention),
    sampling: samplingSchema.parse({ max_tokens: bound, temperature: dice.pick([1, 0.7]) }),
  });
  await new RandomAgent(session, speaker, dice).run(dice.between(3, 14));
  await session.session.close();
  const graphOptions = await session.graphOptions();
  for (const name of Object.keys(BUILDS) as (keyof typeof BUILDS)[]) {
    const { measure: one, problems: found } = measure(session, graphOptions, BUILDS[name], versionsOf(mode));
    add(totals[name], one);
    problems.push(...found.map((text) => `seed ${seed}, ${speaker.dialect}, ${name}: ${text}`));
  }
}
