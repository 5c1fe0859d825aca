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

/** Enough to pack some hundred MiB. Limited because an agent can make a tree that keeps a POSTRUN worker busy for as long. */
const COLLECT_SECONDS = 20;
/** Decoding takes engines milliseconds. An engine that takes this long does not respond, and the result must not wait for it. */
const DRIFT_PROOF_MS = 10_000;

/** The functions of an engine pool that resolve token drift. */
export type Decoder = Pick<EnginePools, 'info' | 'modeOf' | 'detokenize'>;

/** A runtime for grading whose start was requested. */
export type FreshRuntime = {
  /** Resolves when its start was permitted or given up. */
  readonly permitted: Promise<void>;
  readonly ready: Promise<Runtime>;
};

export type PostrunInput = {
  /** The agent's runtime; `null` when none was started. */
  readonly runtime: Runtime | null;
  /** `null` when the evaluator uses the agent's runtime. */
  readonly freshRuntime: FreshRuntime | null;
  /** `null` when the task has none. */
  readonly evaluator: Evaluator | null;
  readonly completions: readonly Completion[];
  /** The agent's artifacts; `null` when none were collected. */
  readonly artifacts: Collected | null;
  readonly builders: BuilderRegistry;
  readonly engines: Decoder;
  readonly nodeId: string;
};

/** Runs `work` with a signal that aborts when `signal` does or when the work stalls. */
export type StallGuard = <T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>) => Promise<T>;

/** Computes the reward unless the outcome forbids it. An error becomes the attempt's failure; never rejects. */
export async function evaluate(attempt: Attempt, input: PostrunInput, guarded: StallGuard): Promise<Evaluation> {
  const none: Evaluation = { reward: null, details: {} };
  const { evaluator, runtime, freshRuntime } = input;
  const spec = attempt.lease.task.evaluator;
  const outcome = outcomeOf(attempt);
  if (evaluator === null || spec === null || runtime === null || !OUTCOMES[outcome].evaluated) return none;
  const { eval: ownSeconds } = attempt.lease.task.budgets;
  // A separate budget does not depend on the time that the agent used, so an agent cannot avoid a bad reward by using it up.
  const timer = ownSeconds === undefined ? attempt.timer : attempt.newTimer(ownSeconds * 1000);
  if (timer.remainingMs() === 0) return { reward: null, details: { skipped: 'the time budget is used up' } };
  // Waiting is free, so the wait for a start permit is outside the budget.
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
    // An earlier failure stays the reason, unless the infrastructure failed now: then the whole attempt is retried.
    if (OUTCOMES[failure.outcome].retried) attempt.failure = failure;
    else attempt.fail(failure);
    // A reward that could not be computed is null, not 0.
    return none;
  }
}

/**
 * Packs the artifacts that the task requests, within a separate time limit; `null` when it requests none or there are none. An error
 * becomes the reason why there is no archive, not a failure of the session; never rejects.
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

/** The session's result: the trajectory and completion records, and the summary that rows and lists contain. Never rejects. */
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
 * What the engines of an attempt's pool report about its completions: the ids that close a turn, and whether a turn that was rendered
 * in other ids than it was sampled has the same text. Turns for which no engine responds in time stay unproven. Never rejects.
 */
export async function graphOptionsOf(
  attempt: Attempt,
  completions: readonly Completion[],
  engines: Decoder,
): Promise<GraphOptions> {
  const { pool } = attempt.lease.task.engine;
  // The pool's engines may have been removed since the session ended.
  const present = engines.info().some((engine) => engine.pool === pool);
  const closeIds = present ? engines.modeOf(pool, 'auto').template.close_ids : [];
  const names = { completionId: `${attempt.id}.drift`, sessionId: attempt.id, pool };
  const timer = attempt.newTimer(DRIFT_PROOF_MS);
  const sameText = await timer.run('build', null, attempt.signal, (signal) =>
    proveSameText(completions, closeIds, (ids) => engines.detokenize(ids, names, signal)),
  );
  return { closeIds, sameText };
}

/** The result, without its artifacts when they make it larger than the servers accept. */
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
