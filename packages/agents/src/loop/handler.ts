import { FloeError } from '@floe-rl/core';
import type { EpisodeStatus } from '@floe-rl/core/schema';
import type { Episode, EpisodeResult, ReplyReward } from './episode.ts';

/** The three stages of a job. */
export type HandlerStage = 'init' | 'run' | 'eval';

/** What a handler works on. */
export type HandlerJob = {
  readonly dataSource: string;
  /** The instance: a row of the data source. */
  readonly instance: Readonly<Record<string, unknown>>;
  /** The episode: sandbox, environment, tools, conversation, limits and signal. */
  readonly episode: Episode;
};

/** What the evaluation of a job gives. */
export type HandlerEvaluation = {
  /** Score of the job, which the evaluator `environment` makes its reward; `null` when it cannot be trained. */
  readonly score: number | null;
  /** How the agent ended; default: `finished`. */
  readonly status?: EpisodeStatus;
  /** Why it ended, in a few words. */
  readonly reason?: string;
  /** Final answer of the agent, for evaluators of answers. */
  readonly answer?: string;
  /** Numbers about the job, which become metrics of its episode. */
  readonly metrics?: Readonly<Record<string, number>>;
  readonly replyRewards?: readonly ReplyReward[];
  readonly seatScores?: Readonly<Record<string, number>>;
};

/** The end of a job. */
export type HandlerResult = HandlerEvaluation & {
  /** The stage that failed; `null` when none did. */
  readonly failedStage: HandlerStage | null;
  /** Message of the failure; `null` when no stage failed. */
  readonly error: string | null;
};

/**
 * All that a kind of task needs, in three stages. When code of a stage throws, the callback of the stage may return an evaluation, which ends
 * the job as if the stage had given it. Without such an evaluation the job has no score: a failed `init` ends the session as `env_error`, a
 * failed `run` as `agent_error` and a failed `eval` as `verifier_error`.
 *
 * The handler does not pay for failures of the engine, the sandbox and the time limit. Callbacks are called for them as well, to free what the
 * stage had, but do not decide how the session ends.
 */
export type HandlerDefinition<State = unknown, Artifacts = unknown> = {
  /** Set from the name under which the operator lists the module. */
  readonly name?: string;
  readonly description: string;
  /** Data sources whose instances this handler works on. */
  readonly dataSources: readonly string[];
  /** Prepares the sandbox and what the agent works with. */
  init(job: HandlerJob): Promise<State>;
  /** Lets the agent work. */
  run(job: HandlerJob, state: State): Promise<Artifacts>;
  /** Scores the agent's work. */
  eval(job: HandlerJob, state: State, artifacts: Artifacts): Promise<HandlerEvaluation>;
  initException?(job: HandlerJob, error: Error): Promise<HandlerEvaluation | null> | HandlerEvaluation | null;
  runException?(
    job: HandlerJob,
    error: Error,
    state: State,
  ): Promise<HandlerEvaluation | null> | HandlerEvaluation | null;
  evalException?(
    job: HandlerJob,
    error: Error,
    state: State,
    artifacts: Artifacts,
  ): Promise<HandlerEvaluation | null> | HandlerEvaluation | null;
  /** Changes the result before it is sent, for instance its metrics. Called for every job that has one. */
  finalResult?(job: HandlerJob, result: HandlerResult): Promise<HandlerResult> | HandlerResult;
  /** Frees what a job uses. Called once after each job, however it has ended. */
  close?(job: HandlerJob): void;
};

/** Defines a handler. A module that an operator registers exports the definition as its default, or as `handler`. */
export function defineHandler<State, Artifacts>(
  definition: HandlerDefinition<State, Artifacts>,
): HandlerDefinition<State, Artifacts> {
  return definition;
}

/** Runs the stages of a job, and returns how its episode ended. Rejects when `init` failed, and with failures that are not the handler's. */
export async function runHandler(handler: HandlerDefinition, job: HandlerJob): Promise<EpisodeResult> {
  try {
    return await run(handler, job);
  } finally {
    handler.close?.(job);
  }
}

async function run(handler: HandlerDefinition, job: HandlerJob): Promise<EpisodeResult> {
  const result = await resultOf(handler, job);
  const final = (await handler.finalResult?.(job, result)) ?? result;
  const { metrics = {}, status = 'finished', score, reason, failedStage, error, ...rest } = final;
  for (const [name, value] of Object.entries(metrics)) job.episode.measure(name, value);
  const { answer, replyRewards, seatScores } = rest;
  return {
    status,
    score,
    reason:
      reason ?? (failedStage === null ? `the handler of ${job.dataSource} has ended` : `${failedStage}: ${error}`),
    ...(answer === undefined ? {} : { answer }),
    ...(replyRewards === undefined ? {} : { replyRewards }),
    ...(seatScores === undefined ? {} : { seatScores }),
  };
}

async function resultOf(handler: HandlerDefinition, job: HandlerJob): Promise<HandlerResult> {
  const { signal } = job.episode;
  /** Runs a stage. Returns the result of the job when the stage failed. */
  const stage = async <T>(
    name: HandlerStage,
    work: () => Promise<T>,
    onError: (error: Error) => Promise<HandlerEvaluation | null> | HandlerEvaluation | null | undefined,
  ): Promise<{ readonly value: T } | { readonly failed: HandlerResult }> => {
    try {
      return { value: await work() };
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      const given = await (async () => onError(error))();
      signal.throwIfAborted();
      if (FloeError.is(thrown)) throw thrown;
      const failure = { failedStage: name, error: error.message };
      if (given != null) return { failed: { ...given, ...failure } };
      if (name === 'init') throw new FloeError('plugin_failed', `init: ${error.message}`, {}, thrown);
      return { failed: { score: null, status: name === 'run' ? 'failed' : 'finished', ...failure } };
    }
  };

  const init = await stage(
    'init',
    async () => handler.init(job),
    (error) => handler.initException?.(job, error),
  );
  if ('failed' in init) return init.failed;
  const state = init.value;
  const run = await stage(
    'run',
    async () => handler.run(job, state),
    (error) => handler.runException?.(job, error, state),
  );
  if ('failed' in run) return run.failed;
  const artifacts = run.value;
  const evaluation = await stage(
    'eval',
    async () => handler.eval(job, state, artifacts),
    (error) => handler.evalException?.(job, error, state, artifacts),
  );
  if ('failed' in evaluation) return evaluation.failed;
  return { ...evaluation.value, failedStage: null, error: null };
}
