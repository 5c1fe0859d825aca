import type { AssistantMessage, ChatMessage } from '../schema/index.ts';
import type { Completion } from '../tokens/completion.ts';

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
      if (this.used.has(completion) || !carries(messages, completion)) continue;
      this.used.add(completion);
      if (this.doubted.delete(completion)) completion.abandoned = false;
    }
  }
}

function carries(messages: readonly ChatMessage[], completion: Completion): boolean {
  const echo = messages[completion.request.messages.length];
  return echo?.role === 'assistant' && sameReply(echo, completion.message);
}

/** By the call ids where there are calls, which harnesses echo untouched; else by the text, which they may trim. */
function sameReply(echo: AssistantMessage, reply: AssistantMessage): boolean {
  const calls = reply.tool_calls ?? [];
  const echoed = echo.tool_calls ?? [];
  if (calls.length > 0) return calls.some((call) => echoed.some((other) => other.id === call.id));
  return echoed.length === 0 && (echo.content ?? '').trim() === (reply.content ?? '').trim();
}
