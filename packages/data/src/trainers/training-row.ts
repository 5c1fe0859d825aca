import { FloeError } from '@floe-rl/core';
import type {
  ChatMessage,
  ChatTool,
  ConstrainedSpan,
  Outcome,
  RoutedExpertsRecord,
  SessionResult,
  Trace,
  VersionSpan,
} from '@floe-rl/core/schema';

/**
 * One trace in the form that all trainer formats are made from. P is the number of prompt tokens, R the number of response tokens and
 * T = P + R. The response also contains tokens that the policy did not sample, such as tool results; their mask is 0.
 */
export type TrainingRow = {
  readonly traceId: string;
  /** [P] */
  readonly promptIds: Int32Array;
  /** [R] */
  readonly responseIds: Int32Array;
  /** [R]; 1 for a token that is trained. All 0 in a sample whose `use` is `mask`. */
  readonly lossMask: Uint8Array;
  /** [R]; natural logarithms, 0 for a token that the policy did not sample. Logprobs of masked samples are kept. */
  readonly logprobs: Float32Array;
  /** The policy versions that sampled the trained tokens, as ranges of response positions. */
  readonly versionSpans: readonly VersionSpan[];
  readonly constrainedSpans: readonly ConstrainedSpan[];
  /** `null` when the engine reported no experts for some token. */
  readonly routedExperts: RoutedExpertsRecord | null;
  /** The trace's share of the sample's reward; `null` when the reward could not be computed. */
  readonly reward: number | null;
  readonly finishReason: string | null;
  readonly promptMessages: readonly ChatMessage[];
  readonly responseMessages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly metadata: Readonly<Record<string, unknown>>;
};

/** A finished session with its traces. */
export type TrainingSample = {
  readonly sessionId: string;
  readonly sampleIndex: number;
  readonly outcome: Outcome;
  /** Whether the tokens are trained. A masked sample counts in the baseline of its group, but none of its tokens is trained. */
  readonly use: 'train' | 'mask';
  readonly inBaseline: boolean;
  readonly reward: number | null;
  readonly rewardComponents: Readonly<Record<string, number | null>>;
  /** Images of the messages: the URL for each reference. */
  readonly images: Readonly<Record<string, string>>;
  readonly rows: readonly TrainingRow[];
};

/** The samples of one task, which a trainer compares with each other. */
export type TrainingGroup = {
  readonly groupId: string;
  readonly samples: readonly TrainingSample[];
  /** The rewards that count in the group's baseline. Rewards of samples without a row to train are included. */
  readonly baseline: readonly number[];
  /** Number of results that contribute nothing, by reason: their outcome, or the reason why they cannot be trained on. */
  readonly omitted: Readonly<Record<string, number>>;
};

/**
 * Sorts results into the groups of their tasks, in the order in which the tasks first occur; samples are ordered by their index. A session
 * that occurs several times counts once, since results may be delivered repeatedly.
 *
 * A result contributes no sample if its policy is `drop`, if it has no trace, or if it has no reward in a task with an evaluator. A masked
 * result contributes no sample if it does not count in the baseline. Throws `corrupt_record` when the arrays of a trace differ in length.
 */
export function trainingGroups(results: Iterable<SessionResult>): TrainingGroup[] {
  const bySession = new Map([...results].map((result) => [result.session_id, result]));
  const byTask = new Map<string, SessionResult[]>();
  for (const result of bySession.values()) {
    const group = byTask.get(result.task_id);
    if (group === undefined) byTask.set(result.task_id, [result]);
    else group.push(result);
  }
  return [...byTask].map(([groupId, members]) => groupOf(groupId, members));
}

function groupOf(groupId: string, results: readonly SessionResult[]): TrainingGroup {
  const samples: TrainingSample[] = [];
  const omitted: Record<string, number> = {};
  for (const result of [...results].sort((a, b) => a.sample_index - b.sample_index)) {
    const reason = omission(result);
    if (reason === null) samples.push(sampleOf(result));
    else omitted[reason] = (omitted[reason] ?? 0) + 1;
  }
  const baseline = results.flatMap(({ policy, reward }) => (policy.in_baseline && reward !== null ? [reward] : []));
  return { groupId, samples, baseline, omitted };
}

/** Returns the reason why a result contributes no sample; `null` when it contributes a sample. */
function omission({ policy, outcome, unusable, reward, trajectory }: SessionResult): string | null {
  if (policy.use === 'drop') return unusable ?? outcome;
  if (policy.use === 'train' && unusable !== null) return unusable;
  // A masked sample matters only for the baseline of its group.
  if (policy.use === 'mask' && !policy.in_baseline) return outcome;
  if (policy.use === 'mask' && reward === null) return 'no_reward';
  return trajectory === null || trajectory.traces.length === 0 ? 'no_tokens' : null;
}

function sampleOf(result: SessionResult): TrainingSample {
  const use = result.policy.use === 'train' ? 'train' : 'mask';
  return {
    sessionId: result.session_id,
    sampleIndex: result.sample_index,
    outcome: result.outcome,
    use,
    inBaseline: result.policy.in_baseline,
    reward: result.reward,
    rewardComponents: result.reward_components,
    images: result.trajectory?.images ?? {},
    rows: (result.trajectory?.traces ?? []).map((trace) => rowOf(trace, use)),
  };
}

function rowOf(trace: Trace, use: 'train' | 'mask'): TrainingRow {
  const length = trace.response_ids.length;
  for (const field of ['loss_mask', 'response_logprobs'] as const) {
    if (trace[field].length === length) continue;
    throw new FloeError('corrupt_record', `trace ${trace.trace_id}: ${field} and response_ids differ in length`, {
      trace_id: trace.trace_id,
      field,
      length: trace[field].length,
      response_length: length,
    });
  }
  return {
    traceId: trace.trace_id,
    promptIds: Int32Array.from(trace.prompt_ids),
    responseIds: Int32Array.from(trace.response_ids),
    lossMask: use === 'train' ? Uint8Array.from(trace.loss_mask) : new Uint8Array(length),
    logprobs: Float32Array.from(trace.response_logprobs),
    versionSpans: trace.version_spans,
    constrainedSpans: trace.constrained_spans,
    routedExperts: trace.routed_experts,
    reward: trace.reward,
    finishReason: trace.finish_reason,
    promptMessages: trace.prompt_messages,
    responseMessages: trace.response_messages,
    tools: trace.tools,
    metadata: trace.metadata,
  };
}

/** Returns a group in which no token is trained that the policy sampled under a constraint. */
export function withoutConstrained(group: TrainingGroup): TrainingGroup {
  const samples = group.samples.map((sample) => ({ ...sample, rows: sample.rows.map(withFreeTokens) }));
  return { ...group, samples };
}

function withFreeTokens(row: TrainingRow): TrainingRow {
  if (row.constrainedSpans.length === 0) return row;
  const lossMask = Uint8Array.from(row.lossMask);
  for (const { start, end } of row.constrainedSpans) lossMask.fill(0, start, end);
  return { ...row, lossMask };
}
