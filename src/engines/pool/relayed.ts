import { FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import type { ReplyListener } from '../engine.ts';

type RelayedCall = { readonly id: string; readonly name: string; arguments: string };

/** Passes a reply's deltas on and remembers them: another engine, asked again, would sample another reply. */
export class RelayedReply implements ReplyListener {
  private readonly inner: ReplyListener;
  private begun = false;
  private heard = false;
  private reasoning = '';
  private text = '';
  private readonly calls = new Map<number, RelayedCall>();

  constructor(inner: ReplyListener) {
    this.inner = inner;
  }

  started(promptTokens: number | null): void {
    // Once, also when a call is tried again before its first delta.
    if (this.begun) return;
    this.begun = true;
    this.inner.started(promptTokens);
  }

  delta(delta: ReplyDelta): void {
    this.heard = true;
    if (delta.kind === 'reasoning') this.reasoning += delta.text;
    else if (delta.kind === 'text') this.text += delta.text;
    else if (delta.kind === 'call') this.calls.set(delta.index, { id: delta.id, name: delta.name, arguments: '' });
    else {
      const call = this.calls.get(delta.index);
      if (call !== undefined) call.arguments += delta.text;
    }
    this.inner.delta(delta);
  }

  /** What a call ended with, as something that is not tried again if the reply's beginning is out. */
  failure(error: unknown): unknown {
    if (!this.heard || !FloeError.is(error) || error.code !== 'engine_unavailable') return error;
    return new FloeError('engine_error', error.message, error.details, error);
  }

  /**
   * The message with the call ids that are out. Throws `engine_error` when it does not begin with what is out: the listener could
   * not be told the rest.
   */
  completedBy(message: AssistantMessage, engineId: string): AssistantMessage {
    const toolCalls = message.tool_calls ?? [];
    const agrees =
      (message.reasoning_content ?? '').startsWith(this.reasoning) &&
      (message.content ?? '').startsWith(this.text) &&
      [...this.calls].every(([index, call]) => completes(toolCalls[index], call));
    if (!agrees) {
      throw new FloeError(
        'engine_error',
        `engine ${engineId}: the continued reply contradicts what was streamed of it`,
        {
          engine_id: engineId,
        },
      );
    }
    if (this.calls.size === 0) return message;
    return { ...message, tool_calls: toolCalls.map((call, i) => ({ ...call, id: this.calls.get(i)?.id ?? call.id })) };
  }
}

function completes(whole: ToolCall | undefined, begun: RelayedCall): boolean {
  if (whole === undefined) return false;
  return whole.function.name === begun.name && whole.function.arguments.startsWith(begun.arguments);
}
