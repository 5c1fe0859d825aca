import type { ChatMessage } from '@floe-rl/core/schema';
import type { EvaluatedSession, TraceView } from '../src/evaluator.ts';

export function traceOf(traceId: string, completionIds: readonly string[] = []): TraceView {
  return {
    traceId,
    completionIds,
    trainedTokens: 5,
    finishReason: 'stop',
    step: null,
    promptMessages: [],
    responseMessages: () => [],
  };
}

/** Returns a session without traces in which the agent answered the instruction with `answer`. */
export function sessionOf(answer = 'done', fields: Partial<EvaluatedSession> = {}): EvaluatedSession {
  const instruction = fields.instruction ?? 'Do it.';
  const messages: ChatMessage[] = [
    { role: 'user', content: instruction },
    { role: 'assistant', content: answer },
  ];
  return { sessionId: 'ses_1', attempt: 1, instruction, metadata: {}, messages, traces: [], ...fields };
}
