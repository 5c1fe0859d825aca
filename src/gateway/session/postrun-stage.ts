import type { DeliveredResult } from '../../client/node-api.ts';
import { OUTCOMES } from '../../core/outcomes.ts';
import { sessionSummary } from '../../core/session-summary.ts';
import type { Evaluation, Evaluator } from '../../evaluators/evaluator.ts';
import type { Collected } from '../../runtimes/collect.ts';
import type { Runtime } from '../../runtimes/runtime.ts';
import type { Outcome, TerminalStatus } from '../../schema/index.ts';
import type { BuilderRegistry } from '../../tokens/builders/registry.ts';
import type { Completion } from '../../tokens/completion.ts';
import { encodeRecords } from '../../tokens/records.ts';
import { buildTrajectory, type EncodedTrajectory } from '../../tokens/trajectory.ts';
import { artifactsReport, deliverable } from './artifacts-stage.ts';
import type { Attempt } from './attempt.ts';
import { type Decoder, graphOptionsOf } from './drift-proof.ts';
import { classify } from './failure.ts';

/** A runtime for grading that is on its way. */
export type FreshRuntime = {
  /** Resolves when its start has had its turn, or will have none. */
  readonly turn: Promise<void>;
  readonly ready: Promise<Runtime>;
};

export type PostrunInput = {
  readonly runtime: Runtime | null;
  readonly freshRuntime: FreshRuntime | null;
  readonly evaluator: Evaluator | null;
  readonly completions: readonly Completion[];
  /** What the agent left behind. */
  readonly artifacts: Collected | null;
  readonly builders: BuilderRegistry;
  readonly engines: Decoder;
  readonly nodeId: string;
};

function outcomeOf(attempt: Attempt): Outcome {
  return attempt.failure?.outcome ?? 'completed';
}

/** Runs work with a signal that also aborts when it stalls. */
export type Watched = <T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>) => Promise<T>;

/** Computes the reward unless the outcome forbids it. A failure becomes the attempt's; never rejects. */
export async function evaluate(attempt: Attempt, input: PostrunInput, watched: Watched): Promise<Evaluation> {
  const none: Evaluation = { reward: null, details: {} };
  const { evaluator, runtime } = input;
  const spec = attempt.lease.task.evaluator;
  const outcome = outcomeOf(attempt);
  if (evaluator === null || spec === null || runtime === null || !OUTCOMES[outcome].evaluated) return none;
  const { eval: ownSeconds } = attempt.lease.task.budgets;
  // A budget of its own does not depend on what the agent left over: using up the clock is no way out of a bad reward.
  const timer = ownSeconds === undefined ? attempt.timer : attempt.newTimer(ownSeconds * 1000);
  if (timer.remainingMs() === 0) return { reward: null, details: { skipped: 'the time budget is used up' } };
  // Outside the budget, as all waiting is.
  await input.freshRuntime?.turn;
  try {
    return await timer.run('eval', null, attempt.signal, (budget) =>
      watched(budget, async (signal) => {
        const freshRuntime = input.freshRuntime === null ? null : await readyWithin(input.freshRuntime.ready, signal);
        return evaluator.evaluate({ spec, status: OUTCOMES[outcome].status, runtime, freshRuntime }, signal);
      }),
    );
  } catch (error) {
    const failure = classify(error, 'eval');
    // Whatever went wrong before stays the reason, unless the infrastructure failed now: then all of it is tried again.
    if (OUTCOMES[failure.outcome].retried) attempt.failure = failure;
    else attempt.fail(failure);
    // A reward that could not be computed is null, not 0.
    return none;
  }
}

/** The runtime once it is ready; rejects with the signal's reason when that aborts first. */
function readyWithin(fresh: Promise<Runtime>, signal: AbortSignal): Promise<Runtime> {
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener('abort', abort, { once: true });
    fresh.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}

/** The session's result: trajectory and records from the completions, and the summary that rows and lists hold. */
export async function build(attempt: Attempt, evaluation: Evaluation, input: PostrunInput): Promise<DeliveredResult> {
  const { lease } = attempt;
  const base = { status: statusOf(attempt), reward: evaluation.reward, error: attempt.failure?.error.message ?? null };
  let built: EncodedTrajectory | null = null;
  let completions: Buffer | null = null;
  try {
    built = buildTrajectory({
      spec: lease.task.builder,
      builders: input.builders,
      completions: input.completions,
      graphOptions: await graphOptionsOf(attempt, input.completions, input.engines),
      ...base,
      metadata: {
        task_id: lease.task_id,
        session_id: lease.session_id,
        sample_index: lease.sample_index,
        policy_version: lease.task.policy_version,
      },
    });
    attempt.tallies = built.tallies;
    attempt.policyVersions = versionsOf(input.completions);
    completions = encodeRecords(input.completions, built.graph);
  } catch (error) {
    attempt.fail(classify(error, 'build'));
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
  return deliverable({ summary, trajectory: built?.json ?? null, completions, artifacts });
}

function versionsOf(completions: readonly Completion[]): number {
  return new Set(completions.flatMap(({ versionSpans }) => versionSpans.map(({ version }) => version))).size;
}

function statusOf(attempt: Attempt): TerminalStatus {
  return OUTCOMES[outcomeOf(attempt)].status;
}
