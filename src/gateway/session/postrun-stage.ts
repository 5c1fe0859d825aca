import { type DeliveredResult, deliveryLength } from '../../client/node-api.ts';
import { raceAbort } from '../../core/abort.ts';
import { MIB } from '../../core/bytes.ts';
import { RESULT_LIMIT_BYTES } from '../../core/envelope.ts';
import { asFloeError } from '../../core/errors.ts';
import { OUTCOMES } from '../../core/outcomes.ts';
import { sessionSummary } from '../../core/session-summary.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import type { Evaluation, Evaluator } from '../../evaluators/evaluator.ts';
import { type Collected, collect } from '../../runtimes/collect.ts';
import type { Runtime } from '../../runtimes/runtime.ts';
import type { ArtifactsReport, Outcome } from '../../schema/index.ts';
import type { BuilderRegistry } from '../../tokens/builders/registry.ts';
import type { Completion } from '../../tokens/completion.ts';
import { proveSameText } from '../../tokens/drift-proof.ts';
import type { GraphOptions } from '../../tokens/graph.ts';
import { encodeRecords } from '../../tokens/records.ts';
import { buildTrajectory, type EncodedTrajectory } from '../../tokens/trajectory.ts';
import type { Attempt } from './attempt.ts';
import { classify } from './failure.ts';

/**
 * Longest time to pack artifacts: enough for some hundred MiB. Limited because an agent can create a file tree that takes arbitrarily long
 * to pack, which would keep a POSTRUN worker busy.
 */
const COLLECT_SECONDS = 20;
/**
 * Longest wait for the engines that decode tokens, which takes them milliseconds. An engine that takes longer counts as unresponsive, and
 * the result must not wait for it.
 */
const DRIFT_PROOF_MS = 10_000;

/** The methods of an engine pool with which token drift (text rendered to other ids than were sampled) is resolved. */
export type Decoder = Pick<EnginePools, 'info' | 'modeOf' | 'detokenize'>;

/** A second runtime, in which the evaluator runs. Its start was requested when the agent started. */
export type FreshRuntime = {
  /** Resolves when the runtime may start, or when the wait for the permit has failed. */
  readonly permitted: Promise<void>;
  readonly ready: Promise<Runtime>;
};

export type PostrunInput = {
  /** The runtime in which the agent ran; `null` when none was started. */
  readonly runtime: Runtime | null;
  /** The second runtime for the evaluator; `null` when the evaluator uses the agent's runtime. */
  readonly freshRuntime: FreshRuntime | null;
  /** The evaluator of the task; `null` when the task has none. */
  readonly evaluator: Evaluator | null;
  readonly completions: readonly Completion[];
  /** The archive of the agent's artifacts, or why there is none; `null` when no artifacts were collected. */
  readonly artifacts: Collected | null;
  readonly builders: BuilderRegistry;
  readonly engines: Decoder;
  readonly nodeId: string;
};

/** Runs `work` with a signal that aborts when `signal` aborts or when the work makes no progress for too long. */
export type StallGuard = <T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>) => Promise<T>;

/** Computes the reward, except for outcomes that are not evaluated. An error becomes the attempt's failure; never rejects. */
export async function evaluate(attempt: Attempt, input: PostrunInput, guarded: StallGuard): Promise<Evaluation> {
  const none: Evaluation = { reward: null, details: {} };
  const { evaluator, runtime, freshRuntime } = input;
  const spec = attempt.lease.task.evaluator;
  const outcome = outcomeOf(attempt);
  if (evaluator === null || spec === null || runtime === null || !OUTCOMES[outcome].evaluated) return none;
  const { eval: ownSeconds } = attempt.lease.task.budgets;
  // A separate budget does not depend on the time that the agent used, so an agent cannot avoid a bad reward by using up the time.
  const timer = ownSeconds === undefined ? attempt.timer : attempt.newTimer(ownSeconds * 1000);
  if (timer.remainingMs() === 0) return { reward: null, details: { skipped: 'the time budget is used up' } };
  // Waits for the start permit before the timer starts, because waiting for capacity does not count against the budget.
  await freshRuntime?.permitted;
  try {
    return await timer.run('eval', null, attempt.signal, (budget) =>
      guarded(budget, async (signal) => {
        const fresh = freshRuntime === null ? null : await raceAbort(freshRuntime.ready, signal);
        const { status } = OUTCOMES[outcome];
        return evaluator.evaluate({ spec, status, runtime, freshRuntime: fresh }, signal);
      }),
    );
  } catch (error) {
    const failure = classify(error, 'eval');
    // An earlier failure is kept, except when the infrastructure failed in the evaluation: then the whole attempt must be retried.
    if (OUTCOMES[failure.outcome].retried) attempt.failure = failure;
    else attempt.fail(failure);
    // The reward is `null`, not 0, because it could not be computed.
    return none;
  }
}

/**
 * Packs the artifacts that the task requests, within a separate time limit; `null` when the task requests none or the agent left none. An
 * error does not fail the session: it is reported as the reason why there is no archive. Never rejects.
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
 * Returns the session's result: its trajectory, its completion records, and the summary that the store keeps in a row and that lists of
 * sessions contain. Never rejects.
 */
export async function buildResult(
  attempt: Attempt,
  evaluation: Evaluation,
  input: PostrunInput,
): Promise<DeliveredResult> {
  const { lease } = attempt;
  const { status } = OUTCOMES[outcomeOf(attempt)];
  const error = attempt.failure?.error.message ?? null;
  let built: EncodedTrajectory | null = null;
  let completions: Buffer | null = null;
  try {
    built = buildTrajectory({
      spec: lease.task.builder,
      builders: input.builders,
      completions: input.completions,
      graphOptions: await graphOptionsOf(attempt, input.completions, input.engines),
      status,
      reward: evaluation.reward,
      error,
      metadata: {
        task_id: lease.task_id,
        session_id: lease.session_id,
        sample_index: lease.sample_index,
        policy_version: lease.task.policy_version,
      },
    });
    attempt.tallies = built.tallies;
    attempt.policyVersions = policyVersionCount(input.completions);
    completions = encodeRecords(input.completions, built.graph);
  } catch (thrown) {
    attempt.fail(classify(thrown, 'build'));
  }
  const summary = sessionSummary(lease, outcomeOf(attempt), {
    reward: evaluation.reward,
    reward_details: evaluation.details,
    trace_count: built?.traceCount ?? 0,
    trainable_tokens: built?.trainableTokens ?? 0,
    completion_count: input.completions.length,
    audit: built?.audit ?? null,
    timing: attempt.timing(),
    agent: attempt.agent,
    artifacts: artifactsReport(input.artifacts),
    node_id: input.nodeId,
    error: attempt.failure?.error ?? null,
    metadata: lease.task.metadata,
  });
  const artifacts = input.artifacts?.archive ?? null;
  return withinResultLimit({ summary, trajectory: built?.json ?? null, completions, artifacts });
}

/**
 * Asks the engines of an attempt's pool for what the token graph needs: the ids that close a turn, and whether a turn that was rendered in
 * other ids than were sampled has the same text. A turn for which no engine responds in time counts as not proven. Never rejects.
 */
export async function graphOptionsOf(
  attempt: Attempt,
  completions: readonly Completion[],
  engines: Decoder,
): Promise<GraphOptions> {
  const { pool } = attempt.lease.task.engine;
  // The pool has no engines when they were removed after the session ended.
  const present = engines.info().some((engine) => engine.pool === pool);
  const closeIds = present ? engines.modeOf(pool, 'auto').template.close_ids : [];
  const names = { completionId: `${attempt.id}.drift`, sessionId: attempt.id, pool };
  const timer = attempt.newTimer(DRIFT_PROOF_MS);
  const sameText = await timer.run('build', null, attempt.signal, (signal) =>
    proveSameText(completions, closeIds, (ids) => engines.detokenize(ids, names, signal)),
  );
  return { closeIds, sameText };
}

/** Returns the result, without its artifacts when these make it larger than servers accept. */
export function withinResultLimit(result: DeliveredResult, limitBytes = RESULT_LIMIT_BYTES): DeliveredResult {
  if (result.artifacts === null || deliveryLength(result) <= limitBytes) return result;
  const omitted = `with the archive of ${result.artifacts.length} bytes the result is larger than ${limitBytes} bytes`;
  return { ...result, artifacts: null, summary: { ...result.summary, artifacts: { bytes: 0, omitted } } };
}

function artifactsReport(collected: Collected | null): ArtifactsReport | null {
  return collected === null ? null : { bytes: collected.archive?.length ?? 0, omitted: collected.omitted };
}

function outcomeOf(attempt: Attempt): Outcome {
  return attempt.failure?.outcome ?? 'completed';
}

function policyVersionCount(completions: readonly Completion[]): number {
  return new Set(completions.flatMap(({ versionSpans }) => versionSpans.map(({ version }) => version))).size;
}
