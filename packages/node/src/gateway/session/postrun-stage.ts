import {
  type BuilderRegistry,
  type BuiltTraces,
  buildTraces,
  type Completion,
  callSumsOf,
  type EnginePools,
  encodeRecords,
  encodeTrajectory,
  type GraphOptions,
  proveSameText,
  type SameText,
  type TrajectoryEnding,
} from '@floe-rl/capture';
import { type DeliveredResult, deliveryLength } from '@floe-rl/client';
import { asFloeError, FloeError, MIB, raceAbort } from '@floe-rl/core';
import { OUTCOMES, RESULT_LIMIT_BYTES, type SummaryFields, sessionSummary } from '@floe-rl/core/protocol';
import type {
  ArtifactsReport,
  CallSums,
  EgressReport,
  Outcome,
  PolicyVersions,
  SessionCost,
  SessionSummary,
  TaskStep,
} from '@floe-rl/core/schema';
import {
  type CheckedEvaluation,
  checkedEvaluation,
  type Evaluation,
  type Evaluator,
  type EvaluatorLookup,
  type FinalEvaluation,
  NO_EVALUATION,
  type PostRunHook,
} from '@floe-rl/evaluators';
import { type Collected, collect, type Runtime } from '@floe-rl/sandbox';
import type { Attempt } from './attempt.ts';
import { episodeScores, evaluatedSession, explicitRewards } from './evaluated-session.ts';
import { classify, sessionError } from './failure.ts';
import { searchTextOf } from './search-text.ts';

/**
 * Maximum time to pack artifacts, in seconds: enough for some hundred MiB. The time is limited because an agent can create a file tree that
 * takes arbitrarily long to pack, which would keep a POSTRUN worker busy.
 */
const COLLECT_SECONDS = 20;
/** Beginning of the names of an episode's metrics that count the failed calls of a tool. */
const FAILED_CALLS = 'failed.';
/**
 * Maximum time in milliseconds to wait for the engines to convert the session's token ids to text, which normally takes milliseconds. An
 * engine that takes longer counts as unresponsive and must not delay the result.
 */
const DRIFT_PROOF_MS = 10_000;

/** The methods of an engine pool that {@link graphOptionsOf} uses to decode token ids and to get the token ids that close a turn. */
export type Decoder = Pick<EnginePools, 'info' | 'modeOf' | 'detokenize'>;

/** A second sandbox, in which the evaluator runs. Its start was requested when the agent started. */
export type FreshRuntime = {
  /** Resolves when the sandbox may start, or when the wait for the start permit has failed. */
  readonly permitted: Promise<void>;
  readonly ready: Promise<Runtime>;
};

export type PostrunInput = {
  /** The sandbox in which the agent ran; `null` when none was started. */
  readonly runtime: Runtime | null;
  /** The second sandbox, for the evaluator; `null` when the evaluator uses the sandbox of the agent. */
  readonly freshRuntime: FreshRuntime | null;
  /** Stops the second sandbox and starts another one in its place. */
  readonly renewFreshRuntime: () => Promise<Runtime>;
  /** The evaluator of the task; `null` when the task has none. */
  readonly evaluator: Evaluator | null;
  readonly completions: readonly Completion[];
  /** The archive of the artifacts of the agent, or the reason why there is none; `null` when no artifacts were collected. */
  readonly artifacts: Collected | null;
  /** Network traffic of the sandboxes; `null` without an egress proxy. */
  readonly egress: EgressReport | null;
  readonly builders: BuilderRegistry;
  readonly engines: Decoder;
  readonly nodeId: string;
};

/** Runs `work` with a signal that aborts when `signal` aborts or when the work makes no progress for too long. */
export type StallGuard = <T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>) => Promise<T>;

/**
 * Builds the traces of the session. Resolves with `null` when that fails; the error then becomes the failure of the attempt. Never rejects.
 */
export async function buildSession(
  attempt: Attempt,
  input: Pick<PostrunInput, 'builders' | 'completions' | 'engines'>,
): Promise<BuiltTraces | null> {
  const { builders, completions, engines } = input;
  try {
    const graphOptions = await graphOptionsOf(attempt, completions, engines);
    const built = buildTraces({ spec: attempt.lease.task.builder, builders, completions, graphOptions });
    attempt.tallies = built.tallies;
    attempt.policyVersions = policyVersionCount(completions);
    return built;
  } catch (thrown) {
    attempt.fail(classify(thrown, 'build'));
    return null;
  }
}

/**
 * Computes the reward, unless the outcome of the session needs no evaluation. `built` is the result of {@link buildSession}. An error
 * becomes the failure of the attempt. Never rejects.
 */
export async function evaluate(
  attempt: Attempt,
  built: BuiltTraces | null,
  input: PostrunInput,
  guarded: StallGuard,
): Promise<CheckedEvaluation> {
  const { evaluator, runtime, freshRuntime } = input;
  const spec = attempt.lease.task.evaluator;
  const outcome = outcomeOf(attempt);
  if (evaluator === null || spec === null || runtime === null || !OUTCOMES[outcome].evaluated) return NO_EVALUATION;
  // The wait for the permit to start the fresh runtime counts against no budget, because capacity may be short.
  await freshRuntime?.permitted;
  const { timeout_seconds, budgets } = attempt.lease.task;
  // The start of the fresh runtime and the evaluation each have a budget apart from the agent's. Otherwise an agent could avoid a bad reward
  // by using up the time.
  const startTimer = attempt.newTimer((budgets.init ?? timeout_seconds) * 1000);
  const timer = attempt.newTimer((budgets.eval ?? timeout_seconds) * 1000);
  try {
    const fresh =
      freshRuntime === null
        ? null
        : await startTimer.run('eval', null, attempt.signal, (signal) => raceAbort(freshRuntime.ready, signal));
    const session = evaluatedSession(attempt, input.completions, built);
    const steps = attempt.lease.task.steps.map(({ name }) => ({
      name,
      evaluation: attempt.steps.find((step) => step.name === name)?.evaluation ?? null,
    }));
    const renewFreshRuntime = (signal: AbortSignal): Promise<Runtime> => raceAbort(input.renewFreshRuntime(), signal);
    const { status } = OUTCOMES[outcome];
    const episode = attempt.episode === null ? null : episodeScores(attempt.episode);
    const context = { spec, status, runtime, freshRuntime: fresh, renewFreshRuntime, session, steps, episode };
    const evaluation = await timer.run('eval', null, attempt.signal, (budget) =>
      guarded(budget, (signal) => evaluator.evaluate(context, signal)),
    );
    return checkedEvaluation(evaluator.name, evaluation, session);
  } catch (error) {
    failEvaluation(attempt, error);
    // The reward is `null` and not 0, because it could not be computed.
    return NO_EVALUATION;
  }
}

/**
 * Evaluates a step after the agent has run it. Resolves with `null` when the outcome of the session needs no evaluation, or when the
 * evaluation fails; the error then becomes the failure of the attempt. Never rejects.
 */
export async function evaluateStep(
  attempt: Attempt,
  step: TaskStep,
  input: {
    readonly runtime: Runtime;
    readonly evaluators: EvaluatorLookup;
    readonly completions: readonly Completion[];
  },
  guarded: StallGuard,
): Promise<Evaluation | null> {
  const { runtime, evaluators, completions } = input;
  const { status, evaluated } = OUTCOMES[outcomeOf(attempt)];
  if (!evaluated) return null;
  const { budgets, timeout_seconds } = attempt.lease.task;
  const timer = attempt.newTimer((step.eval_seconds ?? budgets.eval ?? timeout_seconds) * 1000);
  const { evaluator: spec, instruction } = step;
  try {
    const evaluator = evaluators.get(spec.strategy);
    const session = { ...evaluatedSession(attempt, completions, null), instruction };
    const context = { spec, status, runtime, freshRuntime: null, session };
    const evaluation = await timer.run('eval', null, attempt.signal, (budget) =>
      guarded(budget, (signal) => evaluator.evaluate(context, signal)),
    );
    return checkedEvaluation(evaluator.name, evaluation, session);
  } catch (error) {
    failEvaluation(attempt, error);
    return null;
  }
}

/** Sets the failure of an attempt whose evaluation failed. */
function failEvaluation(attempt: Attempt, thrown: unknown): void {
  const failure = classify(thrown, 'eval');
  // An earlier failure of the attempt is kept, except when the infrastructure failed during evaluation: then the whole attempt must be
  // retried.
  if (OUTCOMES[failure.outcome].retried) attempt.failure = failure;
  else attempt.fail(failure);
}

/** Returns the evaluation of a session that no hook has dropped. */
export function undropped(evaluation: CheckedEvaluation): FinalEvaluation {
  return { ...evaluation, dropped: null };
}

/**
 * Runs the operator's hooks on an evaluated session, one after the other, and returns the evaluation with their changes. The error of a hook
 * becomes the failure of the attempt, which then has no reward, and the other hooks do not run. Never rejects.
 */
export async function runHooks(
  attempt: Attempt,
  built: BuiltTraces | null,
  evaluated: CheckedEvaluation,
  input: PostrunInput,
  hooks: readonly PostRunHook[],
): Promise<FinalEvaluation> {
  let evaluation = undropped(evaluated);
  if (!OUTCOMES[outcomeOf(attempt)].evaluated) return evaluation;
  const { task } = attempt.lease;
  const session = evaluatedSession(attempt, input.completions, built);
  try {
    for (const hook of hooks) {
      const { dropped, ...current } = evaluation;
      const summary = summaryOf(attempt, built, evaluation, input);
      evaluation = await hook.run({ task, session, evaluation: current, summary }, dropped, attempt.signal);
    }
    return evaluation;
  } catch (error) {
    attempt.fail(classify(error, 'eval'));
    return undropped(NO_EVALUATION);
  }
}

/**
 * Packs the artifacts that the task requests, within a separate time limit. Returns `null` when the task requests none or the agent left
 * none. An error does not fail the session: it is reported as the reason why there is no archive. Never rejects.
 */
export async function collectArtifacts(attempt: Attempt, runtime: Runtime | null): Promise<Collected | null> {
  const { collect: requested, max_mb: maxMb, paths } = attempt.lease.task.artifacts;
  if (!requested || runtime === null) return null;
  const timer = attempt.newTimer(COLLECT_SECONDS * 1000);
  try {
    return await timer.run('artifacts', null, attempt.signal, (signal) =>
      collect(runtime, { maxBytes: Math.floor(maxMb * MIB), paths }, signal),
    );
  } catch (thrown) {
    const error = asFloeError(thrown);
    const late = error.code === 'deadline_exceeded';
    return { archive: null, omitted: late ? `packing took longer than ${COLLECT_SECONDS} s` : error.message };
  }
}

/**
 * Returns the result of the session: its trajectory, its completion records, and a summary. The store keeps the summary in a database row
 * and returns it in lists of sessions. `built` is the result of {@link buildSession}. Never fails: an error becomes the failure of the
 * attempt.
 */
export function encodeResult(
  attempt: Attempt,
  built: BuiltTraces | null,
  evaluation: FinalEvaluation,
  input: Pick<PostrunInput, 'completions' | 'engines' | 'artifacts' | 'egress' | 'nodeId'>,
): DeliveredResult {
  let trajectory: Buffer | null = null;
  let completions: Buffer | null = null;
  try {
    if (built !== null) {
      trajectory = encodeTrajectory(built, endingOf(attempt, evaluation));
      completions = encodeRecords(input.completions, built.graph);
    }
  } catch (thrown) {
    attempt.fail(classify(thrown, 'build'));
  }
  const summary = summaryOf(attempt, built, evaluation, input);
  const artifacts = input.artifacts?.archive ?? null;
  const text = searchTextOf(input.completions);
  const result = withinResultLimit({ summary, trajectory, completions, artifacts, text });
  return { ...result, summary: { ...result.summary, cost: costOf(attempt, input.completions, result) } };
}

/** Returns the resources that a session with this result has used. */
function costOf(attempt: Attempt, calls: readonly Completion[], result: DeliveredResult): SessionCost {
  const { trajectory, completions, artifacts, summary } = result;
  const parts = [trajectory, completions, artifacts];
  return {
    prompt_tokens: calls.reduce((sum, { usage }) => sum + usage.prompt_tokens, 0),
    sampled_tokens: calls.reduce((sum, { usage }) => sum + usage.completion_tokens, 0),
    engine_ms: summary.calls?.engine_ms ?? 0,
    sandbox_ms: attempt.lease.task.runtime?.backend === 'none' ? null : summary.timing.total_ms,
    node_cpu_ms: attempt.cpuUs / 1000,
    stored_bytes: parts.reduce((sum, part) => sum + (part?.length ?? 0), 0),
  };
}

function summaryOf(
  attempt: Attempt,
  built: BuiltTraces | null,
  evaluation: FinalEvaluation,
  input: Pick<PostrunInput, 'completions' | 'engines' | 'artifacts' | 'egress' | 'nodeId'>,
): SessionSummary {
  const { lease } = attempt;
  // Every field is required, so that no new field keeps its default unnoticed. The cost is added once the result is encoded.
  const fields: Omit<SummaryFields, 'cost'> = {
    reward: evaluation.reward,
    reward_components: { ...evaluation.components },
    reward_details: { ...evaluation.details },
    dropped: evaluation.dropped,
    trace_count: built?.traces.length ?? 0,
    trainable_tokens: built?.audit.tokens.trained ?? 0,
    completion_count: input.completions.length,
    policy_versions: policyVersionsOf(input.completions),
    audit: built?.audit ?? null,
    calls: callsOf(attempt, input),
    timing: attempt.timing(),
    agent: attempt.agent,
    artifacts: artifactsReport(input.artifacts),
    egress: input.egress,
    runtime: attempt.runtime,
    node_id: input.nodeId,
    error: attempt.failure?.error ?? null,
    metadata: lease.task.metadata,
  };
  return sessionSummary(lease, outcomeOf(attempt), fields);
}

function endingOf(attempt: Attempt, evaluation: CheckedEvaluation): TrajectoryEnding {
  const { lease } = attempt;
  return {
    status: OUTCOMES[outcomeOf(attempt)].status,
    reward: evaluation.reward,
    explicit: explicitRewards(evaluation),
    error: attempt.failure?.error.message ?? null,
    metadata: {
      task_id: lease.task_id,
      session_id: lease.session_id,
      sample_index: lease.sample_index,
      policy_version: lease.task.policy_version,
    },
  };
}

/** Returns the result of a session without evaluation: builds its traces and encodes them. Never rejects. */
export async function buildResult(
  attempt: Attempt,
  input: Pick<PostrunInput, 'builders' | 'completions' | 'engines' | 'artifacts' | 'egress' | 'nodeId'>,
): Promise<DeliveredResult> {
  return encodeResult(attempt, await buildSession(attempt, input), undropped(NO_EVALUATION), input);
}

/**
 * Returns the options for linking the model calls of an attempt to each other; they come from the engines. `closeIds` are the token ids that
 * close a turn. `sameText` reports whether two token sequences have the same text. It is needed when a later prompt contains a turn with ids
 * that differ from the sampled ids. A turn that no engine decodes in time counts as not proven to have the same text. Never rejects.
 */
export async function graphOptionsOf(
  attempt: Attempt,
  completions: readonly Completion[],
  engines: Decoder,
): Promise<GraphOptions> {
  const { pool, extra_pools: extraPools = [] } = attempt.lease.task.engine;
  const known = extraPools.length === 0 ? [] : engines.info();
  const pools = new Map(known.map((engine) => [engine.engine_id, engine.pool]));
  // A reply of an engine that was removed counts to the pool of the task.
  const repliesOf = (name: string): Completion[] =>
    completions.filter(({ engineId }) => (pools.get(engineId) ?? pool) === name);
  const closeIds = closeIdsOf(pool, engines);
  const timer = attempt.newTimer(DRIFT_PROOF_MS);
  return timer.run('build', null, attempt.signal, async (signal) => {
    const proofOf = (name: string, ofPool: readonly Completion[], closing: readonly number[]): Promise<SameText> => {
      const names = { completionId: `${attempt.id}.drift`, sessionId: attempt.id, pool: name };
      return proveSameText(ofPool, closing, (ids) => engines.detokenize(ids, names, signal));
    };
    const proofs = [await proofOf(pool, repliesOf(pool), closeIds)];
    const closeIdsByModel = new Map<string, readonly number[]>();
    for (const extra of extraPools) {
      const ofPool = repliesOf(extra);
      const closing = closeIdsOf(extra, engines);
      for (const { model } of ofPool) closeIdsByModel.set(model, closing);
      proofs.push(await proofOf(extra, ofPool, closing));
    }
    return { closeIds, closeIdsByModel, sameText: agreed(proofs) };
  });
}

/** Returns the token ids that close a turn; none when the pool has no engines, because they were removed after the session ended. */
function closeIdsOf(pool: string, engines: Decoder): readonly number[] {
  const isThere = engines.info().some((engine) => engine.pool === pool);
  return isThere ? engines.modeOf(pool, 'auto').template.close_ids : [];
}

/** Returns whether two token sequences have the same text by the proofs that compared them; `null` when there is none, or they disagree. */
function agreed(proofs: readonly SameText[]): SameText {
  const [only] = proofs;
  if (only !== undefined && proofs.length === 1) return only;
  return (sampled, rendered) => {
    const found = new Set(proofs.map((proof) => proof(sampled, rendered)).filter((same) => same !== null));
    const [same = null] = found;
    return found.size === 1 ? same : null;
  };
}

/**
 * Returns the result in a form that servers accept. When it is too large, omits its artifacts. If that is not enough, the agent made more or
 * larger model calls than a result can contain. The token data is then omitted as well, and the session ends as `agent_error`.
 */
export function withinResultLimit(result: DeliveredResult, limitBytes = RESULT_LIMIT_BYTES): DeliveredResult {
  if (deliveryLength(result) <= limitBytes) return result;
  if (result.artifacts !== null) {
    const omitted = `with the archive of ${result.artifacts.length} bytes the result is larger than ${limitBytes} bytes`;
    const summary = { ...result.summary, artifacts: { bytes: 0, omitted } };
    return withinResultLimit({ ...result, artifacts: null, summary }, limitBytes);
  }
  return { summary: oversizedSummary(result, limitBytes), trajectory: null, completions: null, artifacts: null };
}

/**
 * Returns the summary of a session whose token data is too large to be delivered. The outcome becomes `agent_error`, unless the session
 * already had an outcome for which the agent is not responsible, such as `engine_error`.
 */
function oversizedSummary(result: DeliveredResult, limitBytes: number): SessionSummary {
  const { summary } = result;
  const bytes = deliveryLength(result);
  const outcome = OUTCOMES[summary.outcome].evaluated ? 'agent_error' : summary.outcome;
  const message = `the model calls of the session make a result of ${bytes} bytes, and at most ${limitBytes} bytes can be delivered`;
  const error = new FloeError('body_too_large', message, {
    bytes,
    limit_bytes: limitBytes,
    earlier_error: summary.error,
  });
  const lost = { trace_count: 0, trainable_tokens: 0, audit: null, error: sessionError(error, 'build') };
  return sessionSummary(summary, outcome, { ...summary, ...lost });
}

function artifactsReport(collected: Collected | null): ArtifactsReport | null {
  return collected === null ? null : { bytes: collected.archive?.length ?? 0, omitted: collected.omitted };
}

function outcomeOf(attempt: Attempt): Outcome {
  return attempt.failure?.outcome ?? 'completed';
}

/** Returns the versions of the first and the last sampled token; `null` when no token was sampled. */
function policyVersionsOf(completions: readonly Completion[]): PolicyVersions | null {
  const spans = completions.flatMap(({ versionSpans }) => versionSpans);
  const [first, last] = [spans[0], spans.at(-1)];
  return first === undefined || last === undefined ? null : { first: first.version, last: last.version };
}

/** Returns the sums of the calls of an attempt. Failed calls of tools are known for floe agents, which count them. */
function callsOf(attempt: Attempt, { completions, engines }: Pick<PostrunInput, 'completions' | 'engines'>): CallSums {
  const kinds = new Map(engines.info().map(({ engine_id, kind }) => [engine_id, kind]));
  const failures = Object.entries(attempt.agent?.episode?.metrics ?? {})
    .filter(([name]) => name.startsWith(FAILED_CALLS))
    .map(([name, count]) => [name.slice(FAILED_CALLS.length), count] as const);
  return callSumsOf(completions, (id) => kinds.get(id) ?? null, Object.fromEntries(failures));
}

function policyVersionCount(completions: readonly Completion[]): number {
  return new Set(completions.flatMap(({ versionSpans }) => versionSpans.map(({ version }) => version))).size;
}
