import type { RandomSource } from '@floe-rl/core';
import { sessionSummary, unusableReason } from '@floe-rl/core/protocol';
import type { ConstrainedSpan, Outcome, SessionResult, Trace, VersionSpan } from '@floe-rl/core/schema';

/** Number of token ids. The tiny model has a row of its embedding for each. */
export const VOCABULARY = 512;
/** The padding token id of rows. It does not occur in a trajectory. */
export const PAD_TOKEN_ID = 0;
/** The smallest id in a trajectory. The smaller ones are special tokens of the tiny model's tokenizer. */
const FIRST_ID = 4;
/** Number of samples of each task. Trainers compare the samples of a task with each other. */
export const GROUP_SIZE = 4;
/** Maximum number of turns in one trace. */
const MAX_TURNS = 4;

export type TrajectoryShape = {
  /** Whether each session has one trace, which some formats require. Otherwise it has the main agent's trace and one to three sub-agents'. */
  readonly oneTrace: boolean;
};

/** Outcomes of sessions, each as often as it is listed. */
const OUTCOMES: readonly Outcome[] = [
  ...Array<Outcome>(16).fill('completed'),
  'truncated_context',
  'truncated_turns',
  'agent_timeout',
  'agent_error',
];
/** An outcome whose sessions no export contains. */
const DROPPED: Outcome = 'infra_error';
const REWARDS = [0, 1, 0.25, -0.5];

/**
 * Makes the results of `count` random sessions, {@link GROUP_SIZE} of each task. Responses contain tool results, replies that are not trained
 * because a constraint restricted their sampling, and tokens of several policy versions. Some sessions are masked, and, unless sessions have
 * one trace, some are dropped. All logprobs are 0; {@link withLogprobs} sets them.
 */
export function randomTrajectories(
  count: number,
  random: RandomSource,
  { oneTrace }: TrajectoryShape,
): SessionResult[] {
  return Array.from({ length: count }, (_, index) => {
    const isDropped = !oneTrace && random() < 0.03;
    const outcome = isDropped ? DROPPED : pick(OUTCOMES, random);
    const id = `session-${index}`;
    const traces = Array.from({ length: oneTrace ? 1 : integer(2, 4, random) }, (_, at) =>
      randomTrace(id, at, oneTrace, random),
    );
    const attempt = {
      session_id: id,
      task_id: `task-${Math.floor(index / GROUP_SIZE)}`,
      sample_index: index % GROUP_SIZE,
      attempt: 1,
      epoch: 1,
    };
    const reward = pick(REWARDS, random);
    const summary = sessionSummary(attempt, outcome, {
      reward,
      reward_components: { tests: reward },
      trace_count: traces.length,
      trainable_tokens: traces.reduce((sum, { loss_mask }) => sum + loss_mask.filter((mask) => mask === 1).length, 0),
    });
    const rewarded = traces.map((trace) => ({ ...trace, reward: summary.reward }));
    const { status } = summary;
    const unusable = unusableReason(summary, true);
    return { ...summary, unusable, trajectory: { ...EMPTY_TRAJECTORY, status, traces: rewarded } };
  });
}

const EMPTY_TRAJECTORY = {
  builder: 'prefix_merging',
  images: {},
  audit: {
    tokens: { sampled: 0, trained: 0, excluded: {}, constrained: 0 },
    completions: { recorded: 0, trained: 0, excluded: {} },
    links: { exact: 0, rerendered: 0, fork: 0, root: 0 },
    drift: {},
    exact_context_share: 1,
    context_images: 0,
    rendered_for_images: 0,
    context_special_tokens: 0,
  },
  error: null,
  metadata: {},
};

/** Sets the logprobs of trained tokens. `logprobs` has, for each trace id, an entry for each token of prompt and response. */
export function withLogprobs(
  results: readonly SessionResult[],
  logprobs: ReadonlyMap<string, readonly number[]>,
): SessionResult[] {
  return results.map((result) => {
    if (result.trajectory === null) return result;
    const traces = result.trajectory.traces.map((trace) => {
      const all = logprobs.get(trace.trace_id) ?? [];
      const response = trace.loss_mask.map((mask, i) => (mask === 1 ? (all[trace.prompt_ids.length + i] ?? 0) : 0));
      return { ...trace, response_logprobs: response };
    });
    return { ...result, trajectory: { ...result.trajectory, traces } };
  });
}

/** Part of a response: a reply that is trained, a reply that a constraint restricted and that is not trained, or tokens of the environment. */
type Part = { readonly kind: 'reply' | 'constrained' | 'context'; readonly ids: readonly number[] };

/** Makes a trace; with `isTrained`, one whose last reply is trained. */
function randomTrace(sessionId: string, index: number, isTrained: boolean, random: RandomSource): Trace {
  const turns = integer(1, MAX_TURNS, random);
  const parts: Part[] = random() < 0.1 ? [part('context', 1, 6, random)] : [];
  for (let turn = 0; turn < turns; turn++) {
    if (turn > 0) parts.push(part('context', 1, 10, random));
    const isConstrained = random() < 0.1 && !(isTrained && turn === turns - 1);
    parts.push(part(isConstrained ? 'constrained' : 'reply', 1, 12, random));
  }
  const mask = parts.flatMap(({ kind, ids }) => ids.map(() => (kind === 'reply' ? 1 : 0)));
  return {
    trace_id: `${sessionId}.${index}`,
    prompt_ids: randomIds(2, 24, random),
    response_ids: parts.flatMap(({ ids }) => ids),
    loss_mask: mask,
    response_logprobs: mask.map(() => 0),
    version_spans: versionSpans(parts, random),
    constrained_spans: spansOf(parts).flatMap(({ kind, start, end }): ConstrainedSpan[] =>
      kind === 'constrained' ? [{ constraint: 'tool_choice', start, end }] : [],
    ),
    prompt_messages: [
      { role: 'system', content: index === 0 ? 'You solve tasks.' : `You are sub-agent ${index}.` },
      { role: 'user', content: `Solve ${sessionId}.` },
    ],
    response_messages: parts.map(({ kind, ids }) =>
      kind === 'context'
        ? { role: 'tool', content: `result of ${ids.length} tokens`, tool_call_id: 'call' }
        : { role: 'assistant', content: `reply of ${ids.length} tokens` },
    ),
    tools: [],
    routed_experts: null,
    finish_reason: pick(['stop', 'tool_calls', 'length'], random),
    reward: null,
    completion_ids: [`${sessionId}.${index}.0`],
    metadata: { thread: index === 0 ? 'main' : `sub-agent-${index}` },
  };
}

/** Returns the position of each part in the response. */
function spansOf(parts: readonly Part[]): (Part & { readonly start: number; readonly end: number })[] {
  let end = 0;
  return parts.map((one) => {
    const start = end;
    end += one.ids.length;
    return { ...one, start, end };
  });
}

/** Returns the versions that sampled the replies. A version may change within a reply. */
function versionSpans(parts: readonly Part[], random: RandomSource): VersionSpan[] {
  let step = integer(1, 5, random);
  return spansOf(parts).flatMap(({ kind, start, end }): VersionSpan[] => {
    if (kind !== 'reply') return [];
    const split = random() < 0.3 ? integer(start, end, random) : end;
    const spans = [{ version: `step-${step}`, start, end: split }];
    if (split < end) spans.push({ version: `step-${++step}`, start: split, end });
    return spans.filter((span) => span.start < span.end);
  });
}

function part(kind: Part['kind'], minimum: number, maximum: number, random: RandomSource): Part {
  return { kind, ids: randomIds(minimum, maximum, random) };
}

function randomIds(minimum: number, maximum: number, random: RandomSource): number[] {
  return Array.from({ length: integer(minimum, maximum, random) }, () => integer(FIRST_ID, VOCABULARY - 1, random));
}

/** Returns an integer from `minimum` to `maximum`, both inclusive. */
function integer(minimum: number, maximum: number, random: RandomSource): number {
  return minimum + Math.floor(random() * (maximum - minimum + 1));
}

function pick<T>(values: readonly T[], random: RandomSource): T {
  return values[Math.floor(random() * values.length)] as T;
}
