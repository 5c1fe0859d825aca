import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import type { ReplyDelta } from '../../reply.ts';
import { stopStartLength } from '../chat/stop-strings.ts';
import type { ReplyListener } from '../engine.ts';

type RelayedCall = { readonly id: string; readonly name: string; arguments: string };

/**
 * Forwards a reply's deltas and remembers them. Once a delta has been forwarded, the call cannot be retried, because another engine would
 * sample a different reply to the same request. Text that may be the beginning of a stop string is held back, because a reply may be
 * interrupted inside a stop string and complete it after it is resumed. If the reply ends while text is held back, this text reaches the
 * client as part of the complete message.
 */
export class RelayedReply implements ReplyListener {
  private readonly inner: ReplyListener;
  private readonly stops: readonly string[];
  /** Thinking or text that is held back because it may be the beginning of a stop string. */
  private held: { readonly kind: 'reasoning' | 'text'; readonly text: string } | null = null;
  private hasStarted = false;
  private hasDeltas = false;
  private reasoning = '';
  private text = '';
  private readonly calls = new Map<number, RelayedCall>();

  /** `stops` are the stop strings of the request. */
  constructor(inner: ReplyListener, stops: readonly string[]) {
    this.inner = inner;
    this.stops = stops;
  }

  started(promptTokens: number | null): void {
    // Text that was held back in an earlier try of the call has not been forwarded, and the new try repeats the whole reply.
    this.held = null;
    // The start is forwarded once, even when the call is retried before its first delta.
    if (this.hasStarted) return;
    this.hasStarted = true;
    this.inner.started(promptTokens);
  }

  delta(delta: ReplyDelta): void {
    const { held } = this;
    this.held = null;
    const settled: ReplyDelta[] = [];
    if (held !== null && held.kind !== delta.kind) settled.push(held);
    if (delta.kind === 'reasoning' || delta.kind === 'text') {
      const text = held?.kind === delta.kind ? held.text + delta.text : delta.text;
      const end = text.length - stopStartLength(text, this.stops);
      if (end < text.length) this.held = { kind: delta.kind, text: text.slice(end) };
      if (end > 0) settled.push({ kind: delta.kind, text: text.slice(0, end) });
    } else settled.push(delta);
    for (const part of settled) {
      this.remember(part);
      this.inner.delta(part);
    }
  }

  private remember(delta: ReplyDelta): void {
    this.hasDeltas = true;
    if (delta.kind === 'reasoning') this.reasoning += delta.text;
    else if (delta.kind === 'text') this.text += delta.text;
    else if (delta.kind === 'call') this.calls.set(delta.index, { id: delta.id, name: delta.name, arguments: '' });
    else {
      const call = this.calls.get(delta.index);
      if (call !== undefined) call.arguments += delta.text;
    }
  }

  /**
   * Returns the final error of a failed call. Once a delta was forwarded, `engine_unavailable` becomes `engine_error`, which is not retried.
   * In all other cases, the error is returned unchanged.
   */
  finalFailure(error: unknown): unknown {
    if (!this.hasDeltas || !FloeError.is(error) || error.code !== 'engine_unavailable') return error;
    return new FloeError('engine_error', error.message, error.details, error);
  }

  /**
   * Returns the message with the tool call ids that were forwarded. Throws `engine_error` when the message does not begin with the
   * forwarded deltas, because the rest of such a message cannot be sent to the listener.
   */
  completedBy(message: AssistantMessage, engineId: string): AssistantMessage {
    const toolCalls = message.tool_calls ?? [];
    const isContinuation =
      (message.reasoning_content ?? '').startsWith(this.reasoning) &&
      (message.content ?? '').startsWith(this.text) &&
      [...this.calls].every(([index, call]) => isCompletionOf(call, toolCalls[index]));
    if (!isContinuation) {
      const text = `engine ${engineId}: the resumed reply contradicts the part that was streamed`;
      throw new FloeError('engine_error', text, { engine_id: engineId });
    }
    if (this.calls.size === 0) return message;
    return { ...message, tool_calls: toolCalls.map((call, i) => ({ ...call, id: this.calls.get(i)?.id ?? call.id })) };
  }
}

function isCompletionOf(partial: RelayedCall, complete: ToolCall | undefined): boolean {
  if (complete === undefined) return false;
  return complete.function.name === partial.name && complete.function.arguments.startsWith(partial.arguments);
}
