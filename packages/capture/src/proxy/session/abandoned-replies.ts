import type { AssistantMessage, ChatMessage, ToolCall } from '@floe-rl/core/schema';
import type { Completion } from '../../tokens/completion.ts';
import { sameArguments, sameText } from '../../tokens/same-turn.ts';

/**
 * Decides which replies the harness abandoned. When the harness retries a request whose reply was delivered, that reply is marked
 * `abandoned`. The mark is not set, or is removed, when another request of the session contains the reply in its history, because the
 * harness then used the reply.
 */
export class AbandonedReplies {
  /**
   * Replies that are marked as abandoned: their request was retried after they were delivered, and no request has contained them so far.
   */
  private readonly suspects = new Set<Completion>();
  /**
   * Replies that appeared in the history of a request. The requests themselves are not stored, because an agent may send any number of
   * them, of any size.
   */
  private readonly used = new WeakSet<Completion>();

  /**
   * Marks the reply of a retried request as abandoned, unless the history of a request contained it. May be called for delivered replies
   * only.
   */
  addRetried(completion: Completion): void {
    if (this.used.has(completion)) return;
    completion.abandoned = true;
    this.suspects.add(completion);
  }

  /** Marks as used every reply that appears in the request's history. `recorded` are the session's replies so far. */
  checkRequest(messages: readonly ChatMessage[], recorded: readonly Completion[]): void {
    for (const completion of recorded) {
      // Most replies have no assistant message at their place in the history. This is the fastest check, so it comes first.
      if (turnAfterRequest(messages, completion) === null || this.used.has(completion)) continue;
      if (returnsReply(messages, completion, recorded)) this.markUsed(completion);
    }
  }

  markUsed(completion: Completion): void {
    this.used.add(completion);
    if (this.suspects.delete(completion)) completion.abandoned = false;
  }
}

/**
 * Whether the messages contain the completion's reply directly after the messages of its request. Tool calls are identified by id, name and
 * arguments together, because some engines give the same id to several calls. When the harness changed the arguments, an equal id suffices,
 * unless another recorded reply at that position has this id as well.
 */
function returnsReply(
  messages: readonly ChatMessage[],
  completion: Completion,
  recorded: readonly Completion[],
): boolean {
  const turn = turnAfterRequest(messages, completion);
  if (turn === null) return false;
  const calls = completion.message.tool_calls ?? [];
  const returned = turn.tool_calls ?? [];
  if (calls.length === 0) return returned.length === 0 && sameText(turn, completion.message);
  if (!sharesId(calls, returned)) return false;
  if (calls.every((call) => returned.some((other) => sameCall(call, other)))) return true;
  return !recorded.some(
    (other) =>
      other !== completion &&
      turnAfterRequest(messages, other) === turn &&
      sharesId(other.message.tool_calls ?? [], returned),
  );
}

/** Returns the assistant message that follows the messages of the completion's request; `null` when no assistant message follows them. */
function turnAfterRequest(messages: readonly ChatMessage[], completion: Completion): AssistantMessage | null {
  const turn = messages[completion.request.messages.length];
  return turn?.role === 'assistant' ? turn : null;
}

function sharesId(calls: readonly ToolCall[], returned: readonly ToolCall[]): boolean {
  return calls.some((call) => returned.some((other) => other.id === call.id));
}

function sameCall(call: ToolCall, other: ToolCall): boolean {
  return (
    call.id === other.id &&
    call.function.name === other.function.name &&
    sameArguments(call.function.arguments, other.function.arguments)
  );
}
