import { writeFileSync } from 'node:fs';
import { samplingSchema, type TaskEngine } from '@floe-rl/core/schema';
import { bundledVocabulary, FAULT_KINDS } from '@floe-rl/sim';
import { afterAll, describe, expect, it } from 'vitest';
import { until } from '../../packages/capture/test/proxy/rig.ts';
import { runs } from '../effort.ts';
import { DIALECT_CLIENTS } from '../golden/dialect-clients.ts';
import { MODES, type Mode, taskEngineOf } from '../golden/modes.ts';
import { Golden, type GoldenSession } from '../golden/session.ts';
import { Dice } from './dice.ts';
import { add, emptyMeasure, type Measure, measure } from './measure.ts';
import { RANDOM_SCENARIOS, RandomAgent } from './random-agent.ts';
import { RandomTrainer } from './random-trainer.ts';

/**
 * Number of tokens to sample in each engine mode. The default suffices to run every branch of the code; the program `verify/fidelity`
 * samples a million.
 */
const TOKENS = Number(process.env.FLOE_FIDELITY_TOKENS ?? runs(20_000));
/** Path of the JSON file to which the token counts are written; no file is written when the variable is not set. */
const REPORT = process.env.FLOE_FIDELITY_REPORT;
const SEED = Number(process.env.FLOE_FIDELITY_SEED ?? 1);

/** Number of sessions that run concurrently, so that model calls of different sessions interleave. */
const CONCURRENT_SESSIONS = 6;

/**
 * The faults that the simulated engine has with a small probability. A faulty reply is refused or repeated, and must not affect any other
 * reply.
 */
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

/**
 * The builder configurations to compare: `auto` is the default of floe; `polar` merges every turn that was re-rendered in other tokens, as
 * the Polar system does.
 */
const BUILDS = { auto: {}, polar: { on_drift: 'merge' } } as const;

/** A kind of simulated engine and the way in which floe calls it. `reportsVersion`: whether the engine reports the version of its weights. */
type FidelityMode = Mode & { readonly reportsVersion: boolean };

/**
 * The modes of test/golden, and vLLM servers without the control routes of the development mode: they cannot be paused and report no version
 * of their weights.
 */
const FIDELITY_MODES: readonly FidelityMode[] = [
  ...MODES.map((mode) => ({ ...mode, reportsVersion: true })),
  ...MODES.filter(({ kind }) => kind === 'vllm').map((mode) => ({
    ...mode,
    name: `${mode.name} without control`,
    sim: { ...mode.sim, devMode: false, reportVersions: 'none' as const },
    reportsVersion: false,
  })),
];

const figures: Record<string, Record<keyof typeof BUILDS, Measure>> = {};
afterAll(() => {
  if (REPORT !== undefined) writeFileSync(REPORT, JSON.stringify(figures));
});

describe.each(FIDELITY_MODES.map((mode) => ({ mode, name: mode.name })))(
  'sessions of random harnesses, $name',
  ({ mode }) => {
    it('train every token once and as it was sampled, while the weights are updated', async () => {
      const golden = await Golden.start(mode, {
        scenarios: [...RANDOM_SCENARIOS],
        maxModelLen: 131_072,
        ledgerLimit: 200_000,
      });
      golden.engines.setPolicyVersion('v0');
      const totals = { auto: emptyMeasure(), polar: emptyMeasure() };
      const problems: string[] = [];
      try {
        let seed = SEED * 100_000;
        while (totals.auto.sampled < TOKENS) {
          golden.sim.setFaults(FAULTS.map((kind) => ({ kind, probability: 0.004 })));
          const played = Promise.all(
            Array.from({ length: CONCURRENT_SESSIONS }, () => play(golden, mode, ++seed, totals, problems)),
          );
          const trainer = new RandomTrainer(golden, new Dice(seed), mode.reportsVersion);
          await Promise.all([played, trainer.updateDuring(played, `v${seed}`)]);
        }
      } finally {
        await golden.close();
      }
      figures[mode.name] = totals;
      expect(problems.slice(0, 10)).toEqual([]);
      const { auto } = totals;
      expect(auto).toMatchObject({ mismatches: 0, trained_twice: 0, unaccounted: 0, stale_context: 0 });
      expect(auto.trained).toBeGreaterThan(auto.sampled / 2);
      // Most tokens must have a known policy version. Only tokens of a reply during a weight update may have none.
      expect(auto.unknown_version).toBeLessThan(auto.trained / 2);
      if (mode.tokens) expect(auto.exact).toBe(auto.trained);
    });
  },
);

/**
 * Stop strings that occur in the scripted text "Nothing more to do". The first begins with a token, and the second begins inside a token. No
 * request contains these texts in any other way.
 */
const STOPS = [' more to do', 'ore to do'] as const;

/** Returns a text for each prompt that contains one of these stop strings. No prompt may contain them, because no harness receives them. */
function unreceivedText(session: GoldenSession, stops: readonly string[]): string[] {
  return session
    .ledger()
    .filter(({ prompt_ids }) => stops.some((stop) => bundledVocabulary().decode(prompt_ids).includes(stop)))
    .map(({ request_id }) => `the prompt of ${request_id} contains text that no harness received`);
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
  // OpenAI's Responses API does not support stop strings.
  const stop = client.dialect !== 'openai_responses' && dice.chance(0.4) ? [dice.pick(STOPS)] : [];
  await new RandomAgent(session, client, dice, stop).run(dice.between(3, 14));
  // A call whose client disconnected may still be running. Closing the session would discard its reply, which the engine may already have
  // sampled to its end, so that the ledger would contain a reply that is recorded nowhere.
  await until(() => session.session.runningCalls === 0);
  await session.session.close();
  problems.push(...unreceivedText(session, stop).map((text) => `seed ${seed}, ${client.dialect}: ${text}`));
  const graphOptions = await session.graphOptions();
  for (const name of Object.keys(BUILDS) as (keyof typeof BUILDS)[]) {
    const { measure: one, problems: found } = measure(session, graphOptions, BUILDS[name], {
      unknownVersions: 'allow',
    });
    add(totals[name], one);
    problems.push(...found.map((text) => `seed ${seed}, ${client.dialect}, ${name}: ${text}`));
  }
}
