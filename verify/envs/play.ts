import { ENVIRONMENTS, type EnvironmentDefinition, findEnvironment, parseEnvironmentConfig } from '@floe-rl/agents';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, playedScenarios, type ScenarioInput, startTestService } from '#floe/testing/index';
import type { Finding } from '../runner/checks.ts';
import { resultsOf } from './results.ts';

/** A way in which an environment is played. */
type Way = {
  readonly environment: EnvironmentDefinition;
  readonly config: Readonly<Record<string, unknown>>;
  readonly history: 'append' | 'step';
};

/** Every environment with tool calls, and with each prompt standing for itself; the two-player game with both players. */
const WAYS: readonly Way[] = [
  ...ENVIRONMENTS.map((environment): Way => ({ environment, config: {}, history: 'append' })),
  { environment: findEnvironment('sokoban'), config: { action_format: 'text' }, history: 'append' },
  { environment: findEnvironment('sokoban'), config: { observation: 'image' }, history: 'append' },
  { environment: findEnvironment('frozen_lake'), config: { observation: 'image' }, history: 'append' },
  { environment: findEnvironment('tic_tac_toe'), config: { opponent: 'self' }, history: 'append' },
];
/**
 * In the last part, the policy plays `EPISODES` episodes, and plays this share of them perfectly. The mean reward may differ from the share by
 * `TOLERANCE`.
 */
const SUCCESS_RATE = 0.5;
const EPISODES = 200;
/** Number of calls that the engine's ledger keeps. It is larger than the number of calls in any part. */
const LEDGER_LIMIT = 100_000;
const TOLERANCE = 0.15;

function markOf({ environment, config }: Way, seed: number): string {
  return `Game ${environment.name} ${JSON.stringify(config)} ${seed}.`;
}

function taskOf(way: Way, seed: number): TaskRequestInput {
  const { environment, config, history } = way;
  return {
    instruction: '',
    agent: { harness: 'floe', system_prompt: markOf(way, seed), settings: { agent: 'gym', options: { history } } },
    environment: { type: environment.name, config, seed },
    runtime: { backend: 'none' },
    evaluator: { strategy: 'environment' },
    max_attempts: 1,
  };
}

/** Plays `seeds` episodes of every environment through floe. Each must get the score of perfect play, with the tokens of the ledger. */
export async function playEnvironments(seeds: number): Promise<Finding[]> {
  const scenarios: ScenarioInput[] = [];
  for (const way of WAYS) {
    for (let seed = 0; seed < seeds; seed++) {
      const { environment, config } = way;
      scenarios.push(...(await playedScenarios({ environment, config, seed, mark: markOf(way, seed) })));
    }
  }
  const service = await startTestService({ sim: { scenarios, ledgerLimit: LEDGER_LIMIT } });
  try {
    const findings: Finding[] = [];
    for (const way of WAYS) findings.push(await playWay(service, way, seeds));
    return [...findings, await playWithFailures()];
  } finally {
    await service.close();
  }
}

async function playWay(
  service: Awaited<ReturnType<typeof startTestService>>,
  way: Way,
  seeds: number,
): Promise<Finding> {
  const { environment, config } = way;
  const tasks = Array.from({ length: seeds }, (_, seed) => taskOf(way, seed));
  const results = await resultsOf(service.client, tasks);
  const expected = tasks.map(
    (_, seed) => environment.perfectPlay?.(parseEnvironmentConfig(environment, config), seed).score,
  );
  const wrong = results.filter(
    ({ reward }, seed) => Math.abs((reward ?? Number.NaN) - (expected[seed] ?? 0)) > 1e-9 || reward === null,
  );
  const { mismatches, trainable_tokens } = checkAgainstLedger(results, service.sim.ledger.entries(), 'processed');
  const name = `${environment.name}${Object.entries(config)
    .map(([key, value]) => ` ${key}=${value}`)
    .join('')}`;
  const problem = wrong[0] === undefined ? null : describe(wrong[0]);
  return {
    what: `play ${name}`,
    isPassed: problem === null && mismatches.length === 0,
    detail: problem ?? `${results.length} episodes, ${trainable_tokens} tokens, ledger mismatches ${mismatches.length}`,
  };
}

/** Plays one episode many times with a policy that plays it perfectly with a probability. */
async function playWithFailures(): Promise<Finding> {
  const environment = findEnvironment('frozen_lake');
  const way: Way = { environment, config: {}, history: 'append' };
  const scenarios = await playedScenarios({
    environment,
    config: {},
    seed: 0,
    mark: markOf(way, 0),
    successRate: SUCCESS_RATE,
  });
  const service = await startTestService({ sim: { scenarios, ledgerLimit: LEDGER_LIMIT } });
  try {
    const results = await resultsOf(service.client, [{ ...taskOf(way, 0), num_samples: EPISODES }]);
    const mean = results.reduce((sum, { reward }) => sum + (reward ?? 0), 0) / results.length;
    const { mismatches } = checkAgainstLedger(results, service.sim.ledger.entries(), 'processed');
    return {
      what: `play with a success rate of ${SUCCESS_RATE}`,
      isPassed: Math.abs(mean - SUCCESS_RATE) <= TOLERANCE && mismatches.length === 0,
      detail: `mean reward ${mean.toFixed(3)} of ${results.length} episodes, ledger mismatches ${mismatches.length}`,
    };
  } finally {
    await service.close();
  }
}

function describe({ outcome, reward, error, agent }: SessionResult): string {
  return `reward ${reward}, ${outcome}: ${error?.message ?? agent?.episode?.reason ?? 'no reason'}`;
}
