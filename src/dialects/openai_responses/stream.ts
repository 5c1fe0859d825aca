import type { ReplyDelta } from '../../core/reply.ts';
import { customInput } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { typedEvent } from '../server-sent.ts';
import { itemId } from './identifiers.ts';
import { finishedResponse, openResponse } from './reply.ts';
import {
  type CallHead,
  callItem,
  callItemId,
  compactionItem,
  type ItemStatus,
  isCustom,
  isCut,
  lastStatus,
  messageItem,
  reasoningItem,
  textPart,
} from './reply-items.ts';

/** Codex's idle timer ignores comments and is reset by any event; clients know this type, or ignore what they do not know. */
export const RESPONSES_HEARTBEAT = typedEvent('keepalive', { sequence_number: 0 });

export function openResponsesStream(head: ReplyHead, request: CanonicalRequest): ReplyStream {
  return request.replyShape?.compaction ? new CompactionStream(head, request) : new ItemStream(head, request);
}

/** Events numbered from 0. */
class Events {
  private next = 0;

  of(type: string, data: object): string {
    return typedEvent(`response.${type}`, { sequence_number: this.next++, ...data });
  }

  start(head: ReplyHead, request: CanonicalRequest): string {
    const response = openResponse(head, request);
    return this.of('created', { response }) + this.of('in_progress', { response });
  }

  end(reply: CanonicalReply, request: CanonicalRequest): string {
    return this.of(isCut(reply) ? 'incomplete' : 'completed', { response: finishedResponse(reply, request) });
  }
}

type OpenItem =
  | { readonly kind: 'reasoning'; text: string }
  | { readonly kind: 'text'; text: string }
  | { readonly kind: 'call'; readonly call: CallHead; text: string };

/**
 * Items follow one another: a delta of another kind, or of the next call, closes the open item. Codex acts on a call as soon as
 * its item is done, so that event and all behind it are held back until the end, when the completion is durable.
 */
class ItemStream implements ReplyStream {
  private readonly head: ReplyHead;
  private readonly request: CanonicalRequest;
  private readonly events = new Events();
  private index = -1;
  private open: OpenItem | null = null;
  private held: string | null = null;

  constructor(head: ReplyHead, request: CanonicalRequest) {
    this.head = head;
    this.request = request;
  }

  start(): string {
    return this.events.start(this.head, this.request);
  }

  delta(delta: ReplyDelta): string {
    switch (delta.kind) {
      case 'reasoning':
        return this.pass(this.enterReasoning() + this.reasoningDelta(delta.text));
      case 'text':
        return this.pass(this.enterText() + this.textDelta(delta.text));
      case 'call':
        return this.close('completed') + this.pass(this.enterCall(delta));
      case 'arguments':
        return this.pass(this.argumentsDelta(delta.text));
    }
  }

  end(reply: CanonicalReply): StreamEnd {
    const empty = this.index < 0 ? this.pass(this.enterText()) : '';
    const body = empty + this.close(lastStatus(reply));
    return { body, end: (this.held ?? '') + this.events.end(reply, this.request) };
  }

  private pass(text: string): string {
    if (this.held === null) return text;
    this.held += text;
    return '';
  }

  private enterReasoning(): string {
    if (this.open?.kind === 'reasoning') return '';
    const closed = this.close('completed');
    this.open = { kind: 'reasoning', text: '' };
    const part = { type: 'summary_text', text: '' };
    return (
      closed +
      this.added(reasoningItem(this.head.completionId, null, this.request)) +
      this.events.of('reasoning_summary_part.added', { ...this.place('rs'), summary_index: 0, part })
    );
  }

  private reasoningDelta(text: string): string {
    if (this.open !== null) this.open.text += text;
    return this.events.of('reasoning_summary_text.delta', { ...this.place('rs'), summary_index: 0, delta: text });
  }

  private enterText(): string {
    if (this.open?.kind === 'text') return '';
    const closed = this.close('completed');
    this.open = { kind: 'text', text: '' };
    return (
      closed +
      this.added(messageItem(this.head.completionId, null, 'in_progress')) +
      this.events.of('content_part.added', { ...this.place('msg'), content_index: 0, part: textPart('') })
    );
  }

  private textDelta(text: string): string {
    if (this.open !== null) this.open.text += text;
    return this.events.of('output_text.delta', { ...this.place('msg'), content_index: 0, delta: text, logprobs: [] });
  }

  private enterCall({ index, id, name }: CallHead): string {
    const call = { index, id, name };
    this.open = { kind: 'call', call, text: '' };
    return this.added(callItem(this.head.completionId, call, '', 'in_progress', this.request));
  }

  /** Where the free text of a custom tool ends, only its whole argument tells: its input follows at the end of the call. */
  private argumentsDelta(text: string): string {
    if (this.open?.kind !== 'call') return '';
    this.open.text += text;
    const { call } = this.open;
    if (isCustom(call.name, this.request)) return '';
    return this.events.of('function_call_arguments.delta', { ...this.placeOf(call), delta: text });
  }

  private close(status: ItemStatus): string {
    const { open } = this;
    if (open === null) return '';
    this.open = null;
    switch (open.kind) {
      case 'reasoning':
        return this.pass(this.reasoningDone(open.text));
      case 'text':
        return this.pass(this.textDone(open.text, status));
      case 'call':
        this.held ??= '';
        return this.pass(this.callDone(open.call, open.text, status));
    }
  }

  private reasoningDone(text: string): string {
    const at = { ...this.place('rs'), summary_index: 0 };
    return (
      this.events.of('reasoning_summary_text.done', { ...at, text }) +
      this.events.of('reasoning_summary_part.done', { ...at, part: { type: 'summary_text', text } }) +
      this.done(reasoningItem(this.head.completionId, text, this.request))
    );
  }

  private textDone(text: string, status: ItemStatus): string {
    const at = { ...this.place('msg'), content_index: 0 };
    return (
      this.events.of('output_text.done', { ...at, text, logprobs: [] }) +
      this.events.of('content_part.done', { ...at, part: textPart(text) }) +
      this.done(messageItem(this.head.completionId, text, status))
    );
  }

  private callDone(call: CallHead, text: string, status: ItemStatus): string {
    const at = this.placeOf(call);
    const item = callItem(this.head.completionId, call, text, status, this.request);
    if (!isCustom(call.name, this.request)) {
      const name = this.request.toolForms.get(call.name)?.name ?? call.name;
      return this.events.of('function_call_arguments.done', { ...at, name, arguments: text }) + this.done(item);
    }
    const input = customInput(text);
    const delta = input === '' ? '' : this.events.of('custom_tool_call_input.delta', { ...at, delta: input });
    return delta + this.events.of('custom_tool_call_input.done', { ...at, input }) + this.done(item);
  }

  private added(item: object): string {
    return this.events.of('output_item.added', { output_index: ++this.index, item });
  }

  private done(item: object): string {
    return this.events.of('output_item.done', { output_index: this.index, item });
  }

  private place(prefix: 'rs' | 'msg'): object {
    return { item_id: itemId(prefix, this.head.completionId), output_index: this.index };
  }

  private placeOf(call: CallHead): object {
    return { item_id: callItemId(call, this.head.completionId, this.request), output_index: this.index };
  }
}

/** One item, whose text is sealed as a whole: nothing of it can leave before the end. */
class CompactionStream implements ReplyStream {
  private readonly head: ReplyHead;
  private readonly request: CanonicalRequest;
  private readonly events = new Events();

  constructor(head: ReplyHead, request: CanonicalRequest) {
    this.head = head;
    this.request = request;
  }

  start(): string {
    return this.events.start(this.head, this.request);
  }

  delta(): string {
    return '';
  }

  end(reply: CanonicalReply): StreamEnd {
    const at = { output_index: 0, item: compactionItem(reply) };
    const body = this.events.of('output_item.added', at) + this.events.of('output_item.done', at);
    return { body, end: this.events.end(reply, this.request) };
  }
}
