import type { AssistantMessage, ChatMessage, ToolCall } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { sameArguments, sameText } from '../../tokens/same-turn.ts';

/**
 * Which replies a harness went on with. A reply to a request that the harness repeats word for word is `abandoned`, unless a
 * request of the session, before or after the repeat, carries that reply behind the messages that it answered: then the
 * harness used it, and the repeat is a second sample on purpose.
 */
export class Echoes {
  /** Delivered replies whose request came again. */
  private readonly doubted = new Set<Completion>();
  /** Replies that a request carried. The requests themselves are not kept: an agent may send any number, of any size. */
  private readonly used = new WeakSet<Completion>();

  repeated(completion: Completion): void {
    if (this.used.has(completion)) return;
    completion.abandoned = true;
    this.doubted.add(completion);
  }

  /** `recorded`: the session's replies so far. */
  seen(messages: readonly ChatMessage[], recorded: readonly Completion[]): void {
    for (const completion of recorded) {
      if (!this.used.has(completion) && carries(messages, completion, recorded)) this.carried(completion);
    }
  }

  /** A request goes on from the completion. */
  carried(completion: Completion): void {
    this.used.add(completion);
    if (this.doubted.delete(completion)) completion.abandoned = false;
  }
}

/**
 * Calls are known by their ids, names and arguments together: engines give the same id twice. Where a harness changed the
 * arguments, the id alone will do if no other reply in that place has it.
 */
function carries(messages: readonly ChatMessage[], completion: Completion, recorded: readonly Completion[]): boolean {
  const echo = echoOf(messages, completion);
  if (echo === null) return false;
  const calls = completion.message.tool_calls ?? [];
  const echoed = echo.tool_calls ?? [];
  if (calls.length === 0) return echoed.length === 0 && sameText(echo, completion.message);
  if (!sharesId(calls, echoed)) return false;
  if (calls.every((call) => echoed.some((other) => sameCall(call, other)))) return true;
  return !recorded.some(
    (other) =>
      other !== completion && echoOf(messages, other) === echo && sharesId(other.message.tool_calls ?? [], echoed),
  );
}

/** The assistant turn behind the messages that the completion answered. */
function echoOf(messages: readonly ChatMessage[], completion: Completion): AssistantMessage | null {
  const echo = messages[completion.request.messages.length];
  return echo?.role === 'assistant' ? echo : null;
}

function sharesId(calls: readonly ToolCall[], echoed: readonly ToolCall[]): boolean {
  return calls.some((call) => echoed.some((other) => other.id === call.id));
}

function sameCall(call: ToolCall, other: ToolCall): boolean {
  return (
    call.id === other.id &&
    call.function.name === other.function.name &&
    sameArguments(call.function.arguments, other.function.arguments)
  );
}
