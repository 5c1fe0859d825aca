import type { ReplyDelta } from '../core/reply.ts';
import type { AssistantMessage, ToolCall } from '../schema/index.ts';
import { assistantMessage } from './assistant-message.ts';

type GrowingCall = { id: string; name: string; text: string; sent: number };

/**
 * Puts a message together from the pieces that an engine streams, and hands out deltas on the way.
 *
 * Deltas come in one order: thinking, text, calls. Whatever the engine streams against it is part of the message but of no
 * delta, and nothing that follows it is. White space alone before or behind calls is no text, as in replies that come whole.
 * A character that is cut in two is handed out whole.
 */
export class MessageBuilder {
  private readonly emit: (delta: ReplyDelta) => void;
  private reasoning = '';
  private reasoningSent = 0;
  private text = '';
  private textSent = 0;
  private textBehindCalls = '';
  private readonly calls: GrowingCall[] = [];
  private callsBegun = 0;

  constructor(emit: (delta: ReplyDelta) => void) {
    this.emit = emit;
  }

  addReasoning(text: string): void {
    this.reasoning += text;
  }

  addText(text: string): void {
    if (this.calls.length === 0) this.text += text;
    else this.textBehindCalls += text;
  }

  /** A piece of the call at `index`, which is one of those begun or the next; false for any other. */
  addCall(index: number, id: string, name: string, text: string): boolean {
    if (index > this.calls.length) return false;
    this.calls[index] ??= { id: '', name: '', text: '', sent: 0 };
    const call = this.calls[index];
    if (call.id === '') call.id = id;
    if (call.name === '') call.name = name;
    call.text += text;
    return true;
  }

  /** Hands out what has become known since the last time. */
  flush(): void {
    if (this.textSent === 0 && this.callsBegun === 0) {
      const text = fresh(this.reasoning, this.reasoningSent);
      if (text !== '') this.emit({ kind: 'reasoning', text });
      this.reasoningSent += text.length;
    }
    if (this.reasoningSent < this.reasoning.length) return;
    const blank = this.textSent === 0 && this.text.trim() === '';
    if (!blank) {
      const text = fresh(this.text, this.textSent);
      if (text !== '') this.emit({ kind: 'text', text });
      this.textSent += text.length;
      if (this.textSent < this.text.length) return;
    }
    this.flushCalls();
  }

  /** The first call without an id or a name; null when all have both. */
  incompleteCall(): { readonly index: number; readonly field: string } | null {
    const index = this.calls.findIndex(({ id, name }) => id === '' || name === '');
    return index < 0 ? null : { index, field: this.calls[index]?.id === '' ? 'id' : 'name' };
  }

  message(): AssistantMessage {
    const calls = this.calls.map(
      ({ id, name, text }): ToolCall => ({ id, type: 'function', function: { name, arguments: text } }),
    );
    const content = calls.length === 0 ? this.text : orNothing(this.text) + orNothing(this.textBehindCalls);
    return assistantMessage(content, this.reasoning, calls);
  }

  private flushCalls(): void {
    for (let index = Math.max(0, this.callsBegun - 1); index < this.calls.length; index++) {
      const call = this.calls[index] as GrowingCall;
      if (index === this.callsBegun) {
        if (call.id === '' || call.name === '') return;
        this.callsBegun++;
        this.emit({ kind: 'call', index, id: call.id, name: call.name });
      }
      const text = fresh(call.text, call.sent);
      if (text !== '') this.emit({ kind: 'arguments', index, text });
      call.sent += text.length;
      // The next call would close this one.
      if (call.sent < call.text.length) return;
    }
  }
}

function orNothing(text: string): string {
  return text.trim() === '' ? '' : text;
}

/** What is new, without half a surrogate pair at its end. */
function fresh(text: string, sent: number): string {
  if (sent === text.length) return '';
  const last = text.charCodeAt(text.length - 1);
  const end = last >= 0xd800 && last <= 0xdbff ? text.length - 1 : text.length;
  return text.slice(sent, end);
}
