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
  private readonly requests: (readonly ChatMessage[])[] = [];

  repeated(completion: Completion): void {
    if (this.requests.some((messages) => carries(messages, completion))) return;
    completion.abandoned = true;
    this.doubted.add(completion);
  }

  seen(messages: readonly ChatMessage[]): void {
    this.requests.push(messages);
    for (const completion of this.doubted) {
      if (!carries(messages, completion)) continue;
      completion.abandoned = false;
      this.doubted.delete(completion);
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
