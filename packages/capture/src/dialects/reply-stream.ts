import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import type { ReplyDelta } from '../reply.ts';

/** Content type of server-sent events. */
export const EVENT_STREAM = 'text/event-stream; charset=utf-8';

/** Encodes a server-sent event without a name. */
export function dataEvent(data: object): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}

/** Encodes a server-sent event whose name is also the `type` of its data. */
export function typedEvent(type: string, data: object): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`;
}

/** Counts the characters of a reply that were already sent as deltas, to compute the deltas that are still missing at its end. */
export class SentDeltas {
  private reasoning = 0;
  private text = 0;
  /** Number of argument characters that were already sent for each tool call, by index of the call. */
  private readonly calls: number[] = [];

  add(delta: ReplyDelta): void {
    switch (delta.kind) {
      case 'reasoning':
        this.reasoning += delta.text.length;
        return;
      case 'text':
        this.text += delta.text.length;
        return;
      case 'call':
        this.calls[delta.index] = 0;
        return;
      case 'arguments':
        this.calls[delta.index] = (this.calls[delta.index] ?? 0) + delta.text.length;
        return;
    }
  }

  /**
   * Returns the deltas that complete the message. The deltas of the tool call that is still open come first, because a delta of another
   * kind closes it. Throws `engine_error` when more was sent than the message contains, or when a call before the open one is incomplete.
   */
  missingFrom(message: AssistantMessage): ReplyDelta[] {
    const deltas: ReplyDelta[] = [];
    const reasoning = message.reasoning_content ?? '';
    const content = message.content ?? '';
    const calls = message.tool_calls ?? [];
    const hasIncompleteClosedCall = this.calls.some(
      (sent, index) => index < this.calls.length - 1 && sent < (calls[index]?.function.arguments.length ?? 0),
    );
    if (hasIncompleteClosedCall) {
      throw new FloeError('engine_error', 'the engine continued a tool call after the next one had begun');
    }
    const isOverrun =
      this.reasoning > reasoning.length ||
      this.text > content.length ||
      this.calls.length > calls.length ||
      this.calls.some((sent, index) => sent > (calls[index]?.function.arguments.length ?? 0));
    if (isOverrun) throw new FloeError('engine_error', 'the engine streamed more than its reply holds');
    const open = this.calls.length - 1;
    if (open >= 0) deltas.push(...this.missingArguments(open, calls));
    if (this.reasoning < reasoning.length) deltas.push({ kind: 'reasoning', text: reasoning.slice(this.reasoning) });
    if (this.text < content.length) deltas.push({ kind: 'text', text: content.slice(this.text) });
    for (let index = this.calls.length; index < calls.length; index++) {
      const { id, function: called } = calls[index] as ToolCall;
      deltas.push({ kind: 'call', index, id, name: called.name }, ...this.missingArguments(index, calls));
    }
    return deltas;
  }

  private missingArguments(index: number, calls: readonly ToolCall[]): ReplyDelta[] {
    const text = calls[index]?.function.arguments.slice(this.calls[index] ?? 0) ?? '';
    return text === '' ? [] : [{ kind: 'arguments', index, text }];
  }
}
