import type { CaptureMode, DriftClass, LinkKind, LogprobsMode, ThinkingRetention } from '@floe-rl/core/schema';
import type { BuiltTrace, Credit, ExplicitRewards, RewardShares } from './builders/builder.ts';
import type { Completion } from './completion.ts';
import type { MarkCounter } from './context-marks.ts';
import type { TokenGraph } from './graph.ts';

/** The facts about a session that are repeated in the metadata of each of its traces. */
export type SessionFacts = {
  readonly traceCount: number;
  readonly credit: Credit;
  readonly shares: RewardShares;
  readonly explicit: ExplicitRewards;
  readonly mixtures: readonly Mixture[];
  readonly marks: MarkCounter;
};

/** A property in which the completions of a session may differ although a trainer would assume one value for all of them. */
type Mixture = 'model' | 'logprobs_mode' | 'capture_mode';

const FACTS: Readonly<Record<Mixture, (completion: Completion) => string | null>> = {
  model: (completion) => completion.model,
  logprobs_mode: (completion) => completion.capture.logprobs_mode,
  capture_mode: (completion) => completion.capture.mode,
};

/** Returns the properties in which the completions of a session differ. Completions without sampled tokens are ignored. */
export function mixturesOf(graph: TokenGraph): Mixture[] {
  const sampled = graph.nodes.map((node) => node.completion).filter((one) => one.usage.completion_tokens > 0);
  return (Object.keys(FACTS) as Mixture[]).filter((fact) => new Set(sampled.map(FACTS[fact])).size > 1);
}

type TraceMetadata = {
  readonly call_kind: string;
  readonly thread: string;
  readonly model: string;
  /** How the trained completions were prompted; `mixed` when they differ. */
  readonly capture_mode: CaptureMode | 'mixed';
  /**
   * How long the prompts of the trained completions keep earlier thinking (the task's thinking retention); `mixed` when the completions
   * differ.
   */
  readonly thinking_retention: ThinkingRetention | 'mixed';
  /**
   * How the engine computed the log-probabilities; `mixed` when the trained completions differ, and `null` when no completion of the trace
   * is trained or none has log-probabilities.
   */
  readonly logprobs_mode: LogprobsMode | 'mixed' | null;
  /** Names of the properties in which the completions of the whole session differ. */
  readonly session_mixes: readonly string[];
  /** Whether the builder claims, and the audit confirmed, that every trained token follows the context in which it was sampled. */
  readonly exact_context: boolean;
  /**
   * Number of images in the context of the last completion. If it is above 0, the ids of the trace do not contain the whole context, even
   * where `exact_context` is true: the images themselves are in `prompt_messages` and `response_messages`.
   */
  readonly context_images: number;
  /**
   * Number of texts with the form of a special token in the system, user and tool messages before the last reply. Engines encode such a text
   * as the special token itself.
   */
  readonly context_special_tokens: number;
  /**
   * Whether all trained completions of the trace are auxiliary calls (title, routing and others), which are trained only when the task
   * includes them.
   */
  readonly auxiliary: boolean;
  /** The number of traces of the session, including this one. */
  readonly trace_count: number;
  readonly trace_index: number;
  readonly credit: Credit;
  /** The number of equal shares into which the session's reward is divided; 1 when the reward is not divided. */
  readonly credit_parts: number;
  /**
   * How each completion of the trace is linked to an earlier completion, in order. The link of the first completion explains why a trace
   * starts at this completion.
   */
  readonly links: readonly LinkKind[];
  /**
   * For each completion of the trace, why its prompt does not contain its parent's turn as it was sampled. `null` when the prompt does
   * contain the turn, or when the completion has no parent.
   */
  readonly drift: readonly (DriftClass | null)[];
  /**
   * The id of the completion that the trace's first completion continues or forks from; `null` when the first completion is a root of the
   * token graph.
   */
  readonly continues: string | null;
  /**
   * The reward that the evaluator gave to each completion of the trace, in order; `null` for a completion without such a reward. Absent when
   * the evaluator gave no reward to any completion of the session.
   */
  readonly step_rewards?: readonly (number | null)[];
  /**
   * The response position after the last trained token of each completion, in order; `null` when no token of the completion is trained in this
   * trace. Present when `step_rewards` is.
   */
  readonly step_ends?: readonly (number | null)[];
};

type StepMetadata = {
  readonly trajectory_id: string;
  readonly turn_index: number;
  readonly last_step: boolean;
  /**
   * The reward that the evaluator gave to the step's completion. Without such a reward, the last step of an episode has the trace's reward,
   * and earlier steps have 0. `null` when the session has no reward.
   */
  readonly step_reward: number | null;
};

/** Returns the metadata of a trace. `reward` is the trace's own reward. */
export function traceMetadata(
  trace: BuiltTrace,
  index: number,
  reward: number | null,
  session: SessionFacts,
): (TraceMetadata & Partial<StepMetadata>) | Record<string, never> {
  const first = trace.nodes[0];
  const last = trace.nodes.at(-1);
  if (first === undefined || last === undefined) return {};
  const ids = new Set(trace.spans.map((span) => span.completionId));
  const trained = trace.nodes.map((node) => node.completion).filter((one) => ids.has(one.completionId));
  const marks = session.marks.of(last.completion.request.messages);
  return {
    call_kind: last.completion.callKind,
    thread: last.completion.thread,
    model: last.completion.model,
    capture_mode: commonValue(trained.map((one) => one.capture.mode)) ?? last.completion.capture.mode,
    thinking_retention:
      commonValue(trained.map((one) => one.capture.thinking_retention)) ?? last.completion.capture.thinking_retention,
    logprobs_mode: commonValue(trained.map((one) => one.capture.logprobs_mode)),
    session_mixes: session.mixtures,
    exact_context: trace.spans.every((span) => span.exactContext),
    context_images: marks.images,
    context_special_tokens: marks.specialTokens,
    auxiliary: trained.length > 0 && trained.every((one) => one.auxiliary),
    trace_count: session.traceCount,
    trace_index: index,
    credit: session.credit,
    credit_parts: session.shares.parts,
    links: trace.nodes.map((node) => node.link),
    drift: trace.nodes.map((node) => node.drift),
    continues: (first.parent ?? first.forkOf)?.completion.completionId ?? null,
    ...stepRewards(trace, session.explicit),
    ...stepMetadata(trace, last.completion, reward, session.explicit),
  };
}

function stepMetadata(
  { step }: BuiltTrace,
  { completionId, sessionId, attempt }: Completion,
  reward: number | null,
  { completions }: ExplicitRewards,
): Partial<StepMetadata> {
  if (step === null) return {};
  return {
    trajectory_id: `${sessionId}.${attempt}.e${step.episode}`,
    turn_index: step.turn,
    last_step: step.last,
    step_reward: completions.get(completionId) ?? (step.last || reward === null ? reward : 0),
  };
}

function stepRewards(
  { nodes, spans }: BuiltTrace,
  { completions }: ExplicitRewards,
): Pick<TraceMetadata, 'step_rewards' | 'step_ends'> {
  if (completions.size === 0) return {};
  const ends = new Map(spans.map(({ completionId, start, length }) => [completionId, start + length]));
  const ids = nodes.map(({ completion }) => completion.completionId);
  return {
    step_rewards: ids.map((id) => completions.get(id) ?? null),
    step_ends: ids.map((id) => ends.get(id) ?? null),
  };
}

/** Returns the value that all elements have; `mixed` when they differ, `null` when there are none. */
function commonValue<T extends string | null>(values: readonly T[]): T | 'mixed' | null {
  const [first] = values;
  if (first === undefined) return null;
  return values.every((value) => value === first) ? first : 'mixed';
}
