// `npm run verify -- learn-real`: a real transformer learns a task by tool calls in sandboxes, twice: trained by TRL and by AReaL. The engine
// vLLM serves it on the CPU, and its weights are updated while sessions run. PyTorch then computes the log-probability of every token that a
// trainer was given, with the weights of the recorded version. This value is compared with the recorded log-probability. Ends with
// "learn-real: reward A -> B, T tokens compared, largest difference D, lost L".
//
//   npm run verify -- learn-real [--steps N] [--trainer trl|areal]… [--keep-model] [--quick] [--json [FILE]]
//
// `--keep-model` starts with the model that the last run made. `--quick` takes 4 steps with each trainer, and does not require that the reward
// rises. Installs vLLM and the trainers first (12 GB).

import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import { installVllm } from '../real-engines/install.ts';
import { type RunningFloe, startFloe } from '../runner/floe.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { installEnvironment, installedPython } from '../trainers/install.ts';
import { compareTokens } from './comparison.ts';
import { mean, printCurve, rewardCurve } from './curve.ts';
import { problemsOf, type TrainerRun } from './judge.ts';
import { EXAMPLE, floeCommand, runPython, startVllm, WORKERS } from './processes.ts';
import { allResults, lostSessions } from './sessions.ts';
import { missingParts } from './skip.ts';

const TRAINERS = { trl: 'TRL 1.16.0 AsyncGRPOTrainer', areal: 'AReaL 1.0.4 FSDPPPOActor' } as const;
type TrainerName = keyof typeof TRAINERS;

const { options, json } = readOptions({
  steps: { type: 'string' },
  trainer: { type: 'string', multiple: true, default: Object.keys(TRAINERS) },
  quick: { type: 'boolean', default: false },
  'keep-model': { type: 'boolean', default: false },
});

/** Folder of the models, the weights of all versions, the data of floe, and the logs. */
const FOLDER = join(repositoryRoot(), '.floe', 'learn-real');
const STEPS = { trl: 60, areal: 80 };
const QUICK_STEPS = 4;
/** Conversations of the simulated policy on which the model is fine-tuned. */
const CONVERSATIONS = { full: 160, quick: 120 };
/** Rows that are sampled once before and once after training. */
const EVALUATED_ROWS = { full: 48, quick: 16 };
/** Samples conversations of the simulated policy, and makes a tokenizer and a model of them. Returns the folder of the model. */
async function makeModel(python: string): Promise<string> {
  const tuned = join(FOLDER, 'weights', '0');
  if (options['keep-model'] && existsSync(tuned)) return tuned;
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(join(FOLDER, 'weights'), { recursive: true });
  console.error('▸ making the model from conversations of the simulated policy');
  const [rows, task, scenario] = ['rows.jsonl', 'task.json', 'scenario.json'].map((name) => join(FOLDER, name));
  const log = join(FOLDER, 'model.log');
  const count = options.quick ? CONVERSATIONS.quick : CONVERSATIONS.full;
  await runPython(python, [join(EXAMPLE, 'task.py'), FOLDER, String(count)], {}, log);
  const floe = await startFloe(join(FOLDER, 'simulated'), [...WORKERS, '--sim', '--scenario', scenario ?? '']);
  try {
    const output = join(FOLDER, 'conversations');
    await floeCommand(
      floe,
      ['generate', rows ?? '', '--task', task ?? '', '-o', output, '--formats', 'sft', '--accept', 'reward>=0'],
      log,
    );
  } finally {
    await floe.stop();
  }
  const conversations = join(FOLDER, 'conversations', 'sft.jsonl');
  const random = join(FOLDER, 'random');
  await runPython(python, [join(EXAMPLE, 'tiny.py'), 'make', conversations, random], {}, log);
  await runPython(python, [join(EXAMPLE, 'tiny.py'), 'tune', conversations, random, tuned], {}, log);
  return tuned;
}

/** Removes what an earlier run with this model has left. */
function removeRuns(): void {
  for (const name of readdirSync(join(FOLDER, 'weights'))) {
    if (name !== '0') rmSync(join(FOLDER, 'weights', name), { recursive: true });
  }
  rmSync(join(FOLDER, 'floe'), { recursive: true, force: true });
  for (const name of Object.keys(TRAINERS)) {
    for (const file of [`${name}-taken.jsonl`, `${name}.log`]) rmSync(join(FOLDER, file), { force: true });
  }
}

/** Lets one trainer train the policy from the weights `0`, and compares every token of its sessions. */
async function train(name: TrainerName, floe: RunningFloe, trainersPython: string, model: string): Promise<TrainerRun> {
  const steps = Number(options.steps ?? (options.quick ? QUICK_STEPS : STEPS[name]));
  const [weights, taken, log] = [
    join(FOLDER, 'weights'),
    join(FOLDER, `${name}-taken.jsonl`),
    join(FOLDER, `${name}.log`),
  ];
  const evaluated = options.quick ? EVALUATED_ROWS.quick : EVALUATED_ROWS.full;
  console.error(`▸ ${TRAINERS[name]}: ${steps} steps`);
  await runPython(
    trainersPython,
    [
      ...[join(EXAMPLE, `learn_${name}.py`), '--model', model, '--weights', weights, '--record', taken],
      ...['--steps', String(steps), '--evaluated', String(evaluated)],
    ],
    floe.env,
    log,
  );
  const [before, during, after] = await Promise.all(
    [`${name}-before`, name, `${name}-after`].map((trainer) => allResults(floe, trainer)),
  );
  console.error(`▸ ${name}: comparing every token`);
  const input = {
    results: [...(before ?? []), ...(during ?? []), ...(after ?? [])],
    taken,
    weights,
    dir: FOLDER,
    name,
  };
  const comparison = await compareTokens(trainersPython, input);
  return {
    reward_start: meanReward(before ?? []),
    reward_end: meanReward(after ?? []),
    steps,
    curve: rewardCurve(during ?? [], steps),
    ...comparison,
  };
}

function meanReward(results: readonly SessionResult[]): number {
  return mean(results.flatMap(({ reward }) => (reward === null ? [] : [reward])));
}

function print(runs: ReadonlyMap<TrainerName, TrainerRun>): void {
  const head = ['trainer', 'steps', 'reward', 'tokens compared', 'largest difference', '99.9 % below', 'mean ratio'];
  const rows = [...runs].map(([name, run]) => [
    ...[TRAINERS[name], run.steps],
    `${run.reward_start.toFixed(2)} → ${run.reward_end.toFixed(2)}`,
    run.tokens_compared,
    run.max_abs_logprob_diff.toExponential(1),
    run.p999.toExponential(1),
    run.ratio_mean.toFixed(6),
    `${run.spanning_traces} of ${run.traces}`,
    run.tokens_without_version,
  ]);
  console.log(tableOf([...head, 'spanning traces', 'without version'], rows));
  for (const [name, { curve }] of runs) printCurve(name, curve);
}

async function main(): Promise<void> {
  console.error('▸ installing vLLM and the trainers, where they are missing');
  const vllm = installVllm();
  const pythons = new Map<TrainerName, string>();
  for (const name of selected) {
    installEnvironment(name);
    pythons.set(name, installedPython(name) ?? '');
  }
  installEnvironment('trl');
  const model = await makeModel(installedPython('trl') ?? '');
  removeRuns();
  console.error(`▸ starting ${vllm.version}`);
  const engine = await startVllm(vllm, model, join(FOLDER, 'vllm.log'));
  const floe = await startFloe(join(FOLDER, 'floe'), [...WORKERS, '--engine', engine.url]).catch(
    async (error: unknown) => {
      await engine.stop();
      throw error;
    },
  );
  try {
    const runs = new Map<TrainerName, TrainerRun>();
    for (const [name, python] of pythons) {
      const run = await train(name, floe, python, model);
      runs.set(name, run);
      writeFileSync(join(FOLDER, `${name}.json`), `${JSON.stringify(run, null, 2)}\n`);
    }
    report(runs, await lostSessions(floe));
  } finally {
    await floe.stop();
    await engine.stop();
  }
}

function report(runs: ReadonlyMap<TrainerName, TrainerRun>, lost: number): void {
  print(runs);
  const all = [...runs.values()];
  const keys = {
    reward_start: Math.max(...all.map((run) => run.reward_start)),
    reward_end: Math.min(...all.map((run) => run.reward_end)),
    tokens_compared: all.reduce((sum, run) => sum + run.tokens_compared, 0),
    max_abs_logprob_diff: Math.max(...all.map((run) => run.max_abs_logprob_diff)),
    p999: Math.max(...all.map((run) => run.p999)),
    lost,
    trainers: Object.fromEntries(runs),
  };
  const failures = [...runs].flatMap(([name, run]) =>
    problemsOf(run, { learns: !options.quick }).map((problem) => `${name}: ${problem}`),
  );
  // The update of a tiny model takes so little time that it may reach no session of one of the trainers.
  if (!options.quick && all.every((run) => run.spanning_traces === 0))
    failures.push('no trace spans an update of the weights');
  if (lost > 0) failures.push(`${lost} sessions were lost`);
  for (const failure of failures) console.error(`failed: ${failure}`);
  const line =
    `learn-real: reward ${keys.reward_start.toFixed(2)} -> ${keys.reward_end.toFixed(2)}, ${keys.tokens_compared} tokens compared, ` +
    `largest difference ${keys.max_abs_logprob_diff.toExponential(1)}, lost ${lost}`;
  conclude({ line, keys, isPassed: failures.length === 0, json });
}

refuseUnknown('trainer', options.trainer, Object.keys(TRAINERS));
const selected = options.trainer.filter((name): name is TrainerName => Object.hasOwn(TRAINERS, name));
const reason = missingParts();
if (reason === null) await main();
else console.log(`learn-real: skipped, because ${reason}`);
