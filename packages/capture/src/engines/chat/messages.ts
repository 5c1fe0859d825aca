import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { ReplyDelta } from '../../reply.ts';

/** Schema of the tool calls of a message that is not streamed. */
export const toolCallsSchema = z
  .array(z.object({ id: z.string().min(1), function: z.object({ name: z.string().min(1), arguments: z.string() }) }))
  .nullish();

/** Converts parsed tool calls to floe's form, without the fields that only some servers add. */
export function toolCallsFrom(calls: z.output<typeof toolCallsSchema>): ToolCall[] {
  return (calls ?? []).map(({ id, function: { name, arguments: text } }) => ({
    id,
    type: 'function',
    function: { name, arguments: text },
  }));
}

/**
 * Makes an assistant message as the chat completions API writes it: empty fields are left out, and empty content is `null` in a message
 * with tool calls.
 */
export function assistantMessage(content: string, reasoning: string, calls: readonly ToolCall[]): AssistantMessage {
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: [...calls] }),
  };
}

/**
 * Returns the content of a message with the given tool calls. When a message has tool calls, content that is only white space is formatting
 * of the model and is dropped.
 */
export function contentWithCalls(content: string, calls: readonly ToolCall[]): string {
  return calls.length > 0 && content.trim() === '' ? '' : content;
}

/**
 * Whether a message, given as JSON text, has an image part. The text need not be parsed: an unescaped quoted name between a brace or comma
 * and a colon is always a key in JSON.
 */
export function hasImage(messageText: string): boolean {
  return /[{,]\s*"image_url"\s*:/.test(messageText);
}

type GrowingCall = { id: string; name: string; text: string; sentChars: number };

/**
 * Assembles a message from the pieces that an engine streams, and emits deltas while it grows. Deltas have a fixed order: thinking, text,
 * tool calls. When an engine streams a piece out of this order, the piece becomes part of the message, but neither this piece nor any later
 * one is emitted as a delta. Text before or after tool calls is dropped when it is only white space, as in replies that are not streamed. A
 * surrogate pair is never split between two deltas.
 */
export class MessageBuilder {
  private readonly emit: (delta: ReplyDelta) => void;
  private reasoning = '';
  private reasoningSentChars = 0;
  private text = '';
  private textSentChars = 0;
  private textAfterCalls = '';
  private readonly calls: GrowingCall[] = [];
  private callsSent = 0;

  constructor(emit: (delta: ReplyDelta) => void) {
    this.emit = emit;
  }

  addReasoning(text: string): void {
    this.reasoning += text;
  }

  addText(text: string): void {
    if (this.calls.length === 0) this.text += text;
    else this.textAfterCalls += text;
  }

  /** Adds a piece of the tool call at `index`. Returns false and adds nothing when a tool call with a lower index has not arrived yet. */
  addCall(index: number, id: string, name: string, text: string): boolean {
    if (index > this.calls.length) return false;
    this.calls[index] ??= { id: '', name: '', text: '', sentChars: 0 };
    const call = this.calls[index];
    if (call.id === '') call.id = id;
    if (call.name === '') call.name = name;
    call.text += text;
    return true;
  }

  /** Emits deltas for all pieces that were added since the last flush. */
  flush(): void {
    if (this.textSentChars === 0 && this.callsSent === 0) {
      const text = unsent(this.reasoning, this.reasoningSentChars);
      if (text !== '') this.emit({ kind: 'reasoning', text });
      this.reasoningSentChars += text.length;
    }
    if (this.reasoningSentChars < this.reasoning.length) return;
    const isBlank = this.textSentChars === 0 && this.text.trim() === '';
    if (!isBlank) {
      const text = unsent(this.text, this.textSentChars);
      if (text !== '') this.emit({ kind: 'text', text });
      this.textSentChars += text.length;
      if (this.textSentChars < this.text.length) return;
    }
    this.flushCalls();
  }

  /** Returns the index of the first tool call without an id or a name, and which of the two is missing; `null` when all calls have both. */
  incompleteCall(): { readonly index: number; readonly field: string } | null {
    const index = this.calls.findIndex(({ id, name }) => id === '' || name === '');
    return index < 0 ? null : { index, field: this.calls[index]?.id === '' ? 'id' : 'name' };
  }

  message(): AssistantMessage {
    const calls = this.calls.map(
      ({ id, name, text }): ToolCall => ({ id, type: 'function', function: { name, arguments: text } }),
    );
    const content = calls.length === 0 ? this.text : withoutBlank(this.text) + withoutBlank(this.textAfterCalls);
    return assistantMessage(content, this.reasoning, calls);
  }

  private flushCalls(): void {
    for (let index = Math.max(0, this.callsSent - 1); index < this.calls.length; index++) {
      const call = this.calls[index] as GrowingCall;
      if (index === this.callsSent) {
        if (call.id === '' || call.name === '') return;
        this.callsSent++;
        this.emit({ kind: 'call', index, id: call.id, name: call.name });
      }
      const text = unsent(call.text, call.sentChars);
      if (text !== '') this.emit({ kind: 'arguments', index, text });
      call.sentChars += text.length;
      // The unsent rest of this tool call is half a surrogate pair, so the loop stops. A delta of the next tool call would mean to the
      // listener that this tool call is complete.
      if (call.sentChars < call.text.length) return;
    }
  }
}

function withoutBlank(text: string): string {
  return text.trim() === '' ? '' : text;
}

/** Returns the text after the first `sentChars` characters, leaving out half a surrogate pair at its end. */
function unsent(text: string, sentChars: number): string {
  if (sentChars === text.length) return '';
  const last = text.charCodeAt(text.length - 1);
  const end = last >= 0xd800 && last <= 0xdbff ? text.length - 1 : text.length;
  return text.slice(sentChars, end);
}
