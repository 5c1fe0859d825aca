import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger, type ScenarioInput, startTestService } from '#floe/testing/index';
import { repositoryRoot } from '../../tools/repository.ts';
import { ECOSYSTEMS } from '../registrations/ecosystems.ts';
import { installEnvironment, installedPython } from '../registrations/environments.ts';
import type { Finding } from '../runner/checks.ts';
import { resultsOf } from './results.ts';

const PROGRAMS = join(repositoryRoot(), 'verify', 'envs', 'programs');
const SEEDS = [0, 1, 2, 3];

/** An environment from a package of PyPI. */
type PackagedWorld = {
  readonly name: string;
  readonly target: string;
  /** Name of the Python environment, and the packages that are installed in it. */
  readonly environment: string;
  readonly packages: readonly string[];
  /** Returns the winning replies of each seed. */
  replies(python: string): readonly (readonly string[])[];
};

const GEM = { environment: 'gem', packages: ['gem-llm==0.1.0'] };

const WORLDS: readonly PackagedWorld[] = [
  {
    ...GEM,
    name: 'gem_guess',
    target: 'gem:game:GuessTheNumber-v0-hard',
    // The first guess of each episode is wrong, and the second is right.
    replies: (python) =>
      gemAnswers(python, 'game:GuessTheNumber-v0-hard', 'game_number').map((answer) => [
        `\\boxed{${answer === '1' ? 2 : 1}}`,
        `\\boxed{${answer}}`,
      ]),
  },
  {
    ...GEM,
    name: 'gem_equations',
    target: 'gem:rg:simple_equations',
    replies: (python) => gemAnswers(python, 'rg:simple_equations', 'data').map((answer) => [`\\boxed{${answer}}`]),
  },
  {
    name: 'verifiers_capitals',
    target: 'verifiers:floe_capitals',
    environment: 'verifiers',
    packages: ECOSYSTEMS.find(({ name }) => name === 'verifiers')?.packages ?? [],
    replies: () => ['Paris', 'Tokyo', 'Nairobi', 'Lima'].map((answer) => [answer]),
  },
];

function gemAnswers(python: string, name: string, attribute: string): string[] {
  const args = [join(PROGRAMS, 'gem_answers.py'), name, attribute, ...SEEDS.map(String)];
  const { status, stdout, stderr } = spawnSync(python, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`gem_answers.py ended with ${status}: ${stderr.slice(-500)}`);
  return JSON.parse(stdout) as string[];
}

/** Installs the packages from PyPI where they are missing, and plays their environments through floe. Each episode must get the reward 1. */
export async function runPythonPackages(): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const world of WORLDS) {
    try {
      installEnvironment(world.environment, world.packages);
      findings.push(await play(world, installedPython(world.environment, world.packages) ?? 'python3'));
    } catch (error) {
      findings.push({ what: `python ${world.target}`, isPassed: false, detail: (error as Error).message });
    }
  }
  return findings;
}

async function play(world: PackagedWorld, python: string): Promise<Finding> {
  const { name, target } = world;
  const service = await startTestService({
    sim: { scenarios: [scenarioOf(name, world.replies(python))] },
    server: { plugins: [name] },
    node: { plugins: { python: { [name]: { kind: 'environment', target, python, path: PROGRAMS } }, processes: 1 } },
  });
  try {
    const results = await resultsOf(
      service.client,
      SEEDS.map((_, index) => taskOf(name, index)),
    );
    const { mismatches } = checkAgainstLedger(results, service.sim.ledger.entries(), 'processed');
    const wrong = results.find(({ reward }) => Math.abs((reward ?? 0) - 1) > 1e-9);
    const problem = wrong === undefined ? null : `reward ${wrong.reward}, ${wrong.outcome}: ${wrong.error?.message}`;
    return {
      what: `python ${target}`,
      isPassed: problem === null && results.length === SEEDS.length && mismatches.length === 0,
      detail: problem ?? `${results.length} episodes, ledger mismatches ${mismatches.length}`,
    };
  } finally {
    await service.close();
  }
}

function markOf(name: string, index: number): string {
  return `Episode ${index} of ${name}.`;
}

function scenarioOf(name: string, episodes: readonly (readonly string[])[]): ScenarioInput {
  const rules = episodes.flatMap((replies, index) => {
    const system = { contains: markOf(name, index) };
    return replies.map((text, turn) => ({ when: { system, assistant_turns: turn }, reply: [{ text }] }));
  });
  return { name, rules };
}

function taskOf(name: string, index: number): TaskRequestInput {
  return {
    instruction: markOf(name, index),
    agent: { harness: 'floe', settings: { agent: 'gym' } },
    environment: { type: name, seed: SEEDS[index] ?? 0 },
    runtime: { backend: 'none' },
    evaluator: { strategy: 'environment' },
    max_attempts: 1,
  };
}
