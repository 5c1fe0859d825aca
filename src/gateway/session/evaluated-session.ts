import type { EpisodeResult } from '../../agent/episode.ts';
import type { CheckedEvaluation } from '../../evaluators/evaluation-check.ts';
import type { EpisodeScores, EvaluatedSession, TraceView } from '../../evaluators/evaluator.ts';
import type { BuiltTrace, ExplicitRewards } from '../../tokens/builders/builder.ts';
import type { Completion } from '../../tokens/completion.ts';
import { conversationOf, responseMessages } from '../../tokens/conversation.ts';
import { type BuiltTraces, traceIdOf } from '../../tokens/trajectory.ts';
import type { Attempt } from './attempt.ts';

/** Returns what the evaluator may know of a session. `built` is `null` when its traces could not be built. */
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
