import type { EpisodeResult } from '@floe-rl/agents';
import {
  type BuiltTrace,
  type BuiltTraces,
  type Completion,
  conversationOf,
  type ExplicitRewards,
  responseMessages,
  traceIdOf,
} from '@floe-rl/capture';
import type { CheckedEvaluation, EpisodeScores, EvaluatedSession, TraceView } from '@floe-rl/evaluators';
import type { Attempt } from './attempt.ts';

/** Returns the part of a session that evaluators get. `built` is `null` when its traces could not be built. */
export function evaluatedSession(
  { lease, episode }: Attempt,
  completions: readonly Completion[],
  built: BuiltTraces | null,
): EvaluatedSession {
  return {
    sessionId: lease.session_id,
    attempt: lease.attempt,
    instruction: lease.task.instruction,
    metadata: lease.task.metadata,
    messages: conversationOf(completions),
    traces: built?.traces.map(traceView) ?? [],
    ...(episode?.answer === undefined ? {} : { answer: episode.answer }),
  };
}

function traceView(trace: BuiltTrace, index: number): TraceView {
  const { nodes, spans, step } = trace;
  return {
    traceId: traceIdOf(trace, index),
    completionIds: nodes.map(({ completion }) => completion.completionId),
    trainedTokens: spans.reduce((sum, { length }) => sum + length, 0),
    finishReason: nodes.at(-1)?.completion.finishReason ?? null,
    step,
    promptMessages: nodes[0]?.completion.request.messages ?? [],
    responseMessages: () => responseMessages(nodes),
  };
}

/** Returns the rewards that an evaluator gave to single traces and replies, in the form in which they are encoded. */
export function explicitRewards({ traceRewards, stepRewards }: CheckedEvaluation): ExplicitRewards {
  return { traces: new Map(Object.entries(traceRewards)), completions: new Map(Object.entries(stepRewards)) };
}

/** Returns the scores of an episode, for the evaluator. */
export function episodeScores({ score, seatScores = {}, replyRewards = [], reason }: EpisodeResult): EpisodeScores {
  return { score, seatScores, replyRewards, reason };
}
