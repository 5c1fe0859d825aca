import { randomBytes } from 'node:crypto';
import { type Clock, FloeError } from '@floe-rl/core';
import type { Runtime } from '@floe-rl/sandbox';
import { carryPaths, folderOf } from './carried-paths.ts';
import { isRuntimeFailure, requireWorking, tailOf, withinTime, writeBelow } from './commands.ts';
import type { Evaluation, EvaluationContext, Evaluator } from './evaluator.ts';
import { carryPatch } from './patch.ts';
import { MAX_REWARD_FILE_BYTES, parseRewardFile } from './reward-file.ts';
import { parseScriptConfig, type ScriptConfig, type ScriptFailure } from './script-config.ts';
import { sessionFile } from './session-file.ts';

type ScriptRun = {
  readonly context: EvaluationContext;
  readonly config: ScriptConfig;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * Result of copying the agent's files to the fresh runtime: facts about the copied files, for the details, or the evaluation when they could
 * not be copied.
 */
type Crossed =
  | { readonly crossed: true; readonly changed: boolean; readonly facts: Record<string, unknown> }
  | { readonly crossed: false; readonly evaluation: Evaluation };

/**
 * Creates the evaluator `script`. It runs a command, which writes the reward as JSON to the file that the environment variable `FLOE_REWARD`
 * names. With a fresh runtime, the agent's changes or the declared files are copied there first.
 *
 * A failure of the script in a fresh runtime is `evaluator_failed`. If the task declares that the agent can cause this failure, it is a reward
 * of 0. Without a fresh runtime the agent can cause every failure, so each is a reward of 0.
 */
export function scriptEvaluator(clock: Clock): Evaluator {
  return {
    name: 'script',
    freshRuntimeByDefault: true,
    checkConfig(config, spec) {
      parseScriptConfig(config, spec?.refresh_runtime !== false);
    },
    async evaluate(context, signal) {
      const config = parseScriptConfig(context.spec.config, context.freshRuntime !== null);
      const run = { context, config, clock, signal };
      if (context.freshRuntime === null) return gradeInPlace(run);
      const crossed = await carry(run, context.freshRuntime);
      return crossed.crossed ? grade(run, context.freshRuntime, crossed) : crossed.evaluation;
    },
  };
}

async function carry({ context, config, clock, signal }: ScriptRun, fresh: Runtime): Promise<Crossed> {
  const { runtime: agent, spec } = context;
  if (config.carry === 'none') return { crossed: true, changed: false, facts: {} };
  if (config.carry === 'paths') {
    const { paths, repo_dir: dir, apply_timeout: limitSeconds } = config;
    const carried = await carryPaths(agent, fresh, { paths, dir, limitSeconds, clock, signal });
    if (!carried.applied) return notCrossed(carried.problem, carried.details);
    const { files, bytes, missing } = carried;
    return {
      crossed: true,
      changed: files > 0,
      facts: { carried_files: files, carried_bytes: bytes, missing_paths: missing },
    };
  }
  const patch = await carryPatch(agent, fresh, { evaluator: 'script', config, env: spec.env, clock, signal });
  if (!patch.applied) return notCrossed(patch.problem, patch.details);
  return { crossed: true, changed: patch.bytes > 0, facts: { patch_bytes: patch.bytes } };
}

function notCrossed(problem: string, details: Record<string, unknown>): Crossed {
  return { crossed: false, evaluation: { reward: 0, details: { failure: problem, ...details } } };
}

/** Runs the script in the agent's own runtime. The agent may have broken any part of it. */
async function gradeInPlace(run: ScriptRun): Promise<Evaluation> {
  try {
    return await grade(run, run.context.runtime, { changed: true, facts: {} });
  } catch (thrown) {
    if (!isRuntimeFailure(thrown)) throw thrown;
    return { reward: 0, details: { failure: 'runtime_broken', error: thrown.message } };
  }
}

/** Runs the script and reads its reward. `changed` is whether `runtime` has files of the agent. */
async function grade(
  run: ScriptRun,
  runtime: Runtime,
  { changed, facts }: { readonly changed: boolean; readonly facts: Record<string, unknown> },
): Promise<Evaluation> {
  const { context, config, clock, signal } = run;
  const folder = folderOf(runtime, config.repo_dir);
  const own = `${runtime.paths.home}/floe-${randomBytes(12).toString('hex')}`;
  const paths = { FLOE_SESSION: `${own}/session.json`, FLOE_REWARD: `${own}/reward.json` };
  await runtime.writeFiles([{ path: paths.FLOE_SESSION, content: sessionFile(context) }], signal);
  const blocked = await writeBelow(runtime, folder, config.files, signal);
  if (blocked !== null) {
    // The task writes a file into a fresh runtime, and only a file of the agent can be in its way.
    if (!changed) throw new FloeError('evaluator_failed', `script: config.files: ${blocked.message}`, facts, blocked);
    return { reward: 0, details: { failure: 'files_blocked', error: blocked.message, ...facts } };
  }
  const request = { command: config.command, cwd: folder, env: { ...context.spec.env, ...paths } };
  const ran = await withinTime(clock, config.timeout * 1000, signal, (limited) => runtime.exec(request, limited)).catch(
    (thrown: unknown) => {
      if (!FloeError.is(thrown) || thrown.code !== 'workdir_missing') throw thrown;
      if (!changed) throw new FloeError('evaluator_failed', `script: ${thrown.message}`, facts, thrown);
      return null;
    },
  );
  if (ran === null) return { reward: 0, details: { failure: 'repo_missing', ...facts } };
  if (ran.timedOut) return failed(run, 'timeout', { ...facts, timeout: config.timeout });
  const details = { ...facts, ...tailOf(ran.value) };
  if (ran.value.exitCode !== 0) return failed(run, 'exit_code', details);
  const file = await readReward(runtime, paths.FLOE_REWARD, signal);
  if (file === null) return failed(run, 'no_reward', details);
  const evaluation = typeof file === 'string' ? file : parseRewardFile(file);
  if (typeof evaluation === 'string') return failed(run, 'invalid_reward', { ...details, error: evaluation });
  return { ...evaluation, details: { ...details, reported: evaluation.details } };
}

/** Reads the reward file. Resolves with `null` when there is none, or with the reason when it cannot be read. */
async function readReward(runtime: Runtime, path: string, signal: AbortSignal): Promise<Buffer | string | null> {
  try {
    return await runtime.readFile(path, MAX_REWARD_FILE_BYTES, signal);
  } catch (thrown) {
    if (!isRuntimeFailure(thrown)) throw thrown;
    // A runtime that still runs commands refused the file itself, for example because it is too large.
    await requireWorking(runtime, signal);
    return thrown.message;
  }
}

function failed(
  { context, config }: ScriptRun,
  failure: ScriptFailure,
  details: Readonly<Record<string, unknown>>,
): Evaluation {
  if (context.freshRuntime === null || config.agent_failures.includes(failure)) {
    return { reward: 0, details: { failure, ...details } };
  }
  throw new FloeError('evaluator_failed', `script: ${failure} in a fresh runtime`, { failure, ...details });
}
