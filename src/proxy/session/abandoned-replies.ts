import type { AssistantMessage, ChatMessage, ToolCall } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { sameArguments, sameText } from '../../tokens/same-turn.ts';

/**
 * Decides which replies the harness abandoned. When the harness repeats a request byte for byte, the earlier reply is marked `abandoned`,
 * unless another request of the session, before or after the repeat, contains that reply in its history: then the harness used the reply,
 * and the repeat is a second sample on purpose.
 */
export class AbandonedReplies {
  /** Replies that are marked as abandoned: delivered, but their request was repeated, and no request has contained them so far. */
  private readonly suspects = new Set<Completion>();
  /**
   * Replies that the history of a request contained. The requests themselves are not kept, because an agent may send any number, of any
   * size.
   */
  private readonly used = new WeakSet<Completion>();

  /** Marks the reply of a repeated request as abandoned, unless a request has used it. To be called for delivered replies only. */
  addRepeated(completion: Completion): void {
    if (this.used.has(completion)) return;
    completion.abandoned = true;
    this.suspects.add(completion);
  }

  /** Marks as used every reply in `recorded`, the session's replies so far, that appears in the request's history. */
  checkRequest(messages: readonly ChatMessage[], recorded: readonly Completion[]): void {
    for (const completion of recorded) {
      if (!this.used.has(completion) && returnsReply(messages, completion, recorded)) this.markUsed(completion);
    }
  }

  markUsed(completion: Completion): void {
    this.used.add(completion);
    if (this.suspects.delete(completion)) completion.abandoned = false;
  }
}

/**
 * Whether the messages contain the completion's reply at its position. Calls are identified by id, name and arguments together, because
 * some engines give the same id to several calls. When the harness changed the arguments, the id suffices if no other reply at that
 * position has it.
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

/** Returns the assistant message at the position of the completion's reply; `null` when another message or none is there. */
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
