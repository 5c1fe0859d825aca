import { MIB } from '@floe-rl/core';
import type { ChatMessage } from '@floe-rl/core/schema';
import type { EvaluationContext } from './evaluator.ts';

/**
 * Maximum size in bytes of the messages in the file. An agent can make a conversation of any size, and a failure to write it must not be a
 * way to avoid a bad reward.
 */
const MAX_MESSAGE_BYTES = 8 * MIB;

/**
 * Returns the description of a session that an evaluator's command can read, as JSON. It has ids, status, instruction, the task's metadata,
 * the main agent's conversation, and the traces without their messages. When the conversation is too large, only its last messages are
 * included, and `messages_omitted` is the number of omitted messages.
 */
export function sessionFile({ session, status }: EvaluationContext): string {
  const { sessionId, attempt, instruction, metadata, messages, traces } = session;
  const kept = lastMessages(messages);
  return JSON.stringify({
    session_id: sessionId,
    attempt,
    status,
    instruction,
    metadata,
    messages: kept,
    messages_omitted: messages.length - kept.length,
    traces: traces.map((trace) => ({
      trace_id: trace.traceId,
      completion_ids: trace.completionIds,
      trained_tokens: trace.trainedTokens,
      finish_reason: trace.finishReason,
      step: trace.step,
    })),
  });
}

function lastMessages(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  let bytes = 0;
  for (let index = messages.length - 1; index >= 0; index--) {
    bytes += Buffer.byteLength(JSON.stringify(messages[index]));
    if (bytes > MAX_MESSAGE_BYTES) return messages.slice(index + 1);
  }
  return messages;
}
