import type { FloeError } from '@floe-rl/core';
import type { ReplyDelta } from '../../reply.ts';
import { customInput, isCustomTool } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { clientStatus, isContextOverflow, OPENAI_OVERFLOW_CODE } from '../errors.ts';
import { typedEvent } from '../reply-stream.ts';
import { itemId } from './identifiers.ts';
import {
  type CallHead,
  callItem,
  callItemId,
  compactionItem,
  failedResponse,
  finishedResponse,
  type ItemStatus,
  isTruncated,
  lastStatus,
  messageItem,
  openResponse,
  reasoningItem,
  textPart,
} from './reply.ts';

export function openResponsesStream(head: ReplyHead, request: CanonicalRequest): ReplyStream {
  return request.replyShape?.compaction ? new CompactionStream(head, request) : new ItemStream(head, request);
}

/** Encodes server-sent events and numbers them from 0 in the order in which they are sent. */
class EventEncoder {
  private next = 0;
  /** Events that are held back; `null` until {@link hold} is called. They are numbered when they are released. */
  private held: { readonly type: string; readonly data: object }[] | null = null;

  /** Encodes an event. Returns an empty string when events are held back. */
  encode(type: string, data: object): string {
    if (this.held === null) return this.event(`response.${type}`, data);
    this.held.push({ type, data });
    return '';
  }

  /** Holds back the events that follow, until {@link release}. */
  hold(): void {
    this.held ??= [];
  }

  /** Returns the events that were held back. */
  release(): string {
    const held = this.held ?? [];
    this.held = null;
    return held.map(({ type, data }) => this.encode(type, data)).join('');
  }

  /**
   * Encodes a heartbeat. It is an event, because SSE comments do not reset Codex's idle timer. Clients either handle events of type
   * `keepalive` or ignore them.
   */
  heartbeat(): string {
    return this.event('keepalive', {});
  }

  /**
   * Encodes an error as two events, `error` and `response.failed`, because each client handles only one of them: Codex, for example, reads
   * only `response.failed`. The fields of the `error` event are at its top level, as the API documents it. If they were inside an `error`
   * object, the official SDK would throw before a client such as pi could read the code that decides whether to retry. The events that
   * start the reply come first, because the official client's accumulator fails on any event before them.
   */
  fail(error: FloeError, head: ReplyHead, request: CanonicalRequest): string {
    const { message } = error;
    const code = failureCode(error);
    const started = this.next === 0 ? this.start(head, request) : '';
    return (
      started +
      this.event('error', { code, message, param: null }) +
      this.event('response.failed', { response: failedResponse(head, request, { code, message }) })
    );
  }

  start(head: ReplyHead, request: CanonicalRequest): string {
    const response = openResponse(head, request);
    return this.encode('created', { response }) + this.encode('in_progress', { response });
  }

  end(reply: CanonicalReply, request: CanonicalRequest): string {
    return this.encode(isTruncated(reply) ? 'incomplete' : 'completed', { response: finishedResponse(reply, request) });
  }

  private event(type: string, data: object): string {
    return typedEvent(type, { sequence_number: this.next++, ...data });
  }
}

/** Converts an error to one of the codes that clients handle. Clients decide by the code whether to retry a failed stream. */
function failureCode(error: FloeError): string {
  if (isContextOverflow(error)) return OPENAI_OVERFLOW_CODE;
  const status = clientStatus(error);
  if (status === 429) return 'rate_limit_exceeded';
  return status < 500 ? 'invalid_prompt' : 'server_error';
}

type OpenItem =
  | { readonly kind: 'reasoning'; text: string }
  | { readonly kind: 'text'; text: string }
  | { readonly kind: 'call'; readonly call: CallHead; text: string };

/**
 * Encodes the items of a reply one after another: a delta of another kind, or of the next tool call, closes the open item. Codex runs a
 * tool call as soon as its item is done. The event that ends the item and all events after it are therefore held back until the reply is
 * recorded on disk.
 */
class ItemStream implements ReplyStream {
  private readonly head: ReplyHead;
  private readonly request: CanonicalRequest;
  private readonly events = new EventEncoder();
  private index = -1;
  private open: OpenItem | null = null;

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
        return this.enterReasoning() + this.reasoningDelta(delta.text);
      case 'text':
        return this.enterText() + this.textDelta(delta.text);
      case 'call':
        return this.close('completed') + this.enterCall(delta);
      case 'arguments':
        return this.argumentsDelta(delta.text);
    }
  }

  end(reply: CanonicalReply): StreamEnd {
    const empty = this.index < 0 ? this.enterText() : '';
    const body = empty + this.close(lastStatus(reply));
    return { body, end: this.events.release() + this.events.end(reply, this.request) };
  }

  heartbeat(): string {
    return this.events.heartbeat();
  }

  fail(error: FloeError): string {
    return this.events.fail(error, this.head, this.request);
  }

  private enterReasoning(): string {
    if (this.open?.kind === 'reasoning') return '';
    const closed = this.close('completed');
    this.open = { kind: 'reasoning', text: '' };
    const part = { type: 'summary_text', text: '' };
    return (
      closed +
      this.itemAdded(reasoningItem(this.head.completionId, null, this.request)) +
      this.events.encode('reasoning_summary_part.added', { ...this.itemPath('rs'), summary_index: 0, part })
    );
  }

  private reasoningDelta(text: string): string {
    if (this.open !== null) this.open.text += text;
    return this.events.encode('reasoning_summary_text.delta', {
      ...this.itemPath('rs'),
      summary_index: 0,
      delta: text,
    });
  }

  private enterText(): string {
    if (this.open?.kind === 'text') return '';
    const closed = this.close('completed');
    this.open = { kind: 'text', text: '' };
    return (
      closed +
      this.itemAdded(messageItem(this.head.completionId, null, 'in_progress')) +
      this.events.encode('content_part.added', { ...this.itemPath('msg'), content_index: 0, part: textPart('') })
    );
  }

  private textDelta(text: string): string {
    if (this.open !== null) this.open.text += text;
    return this.events.encode('output_text.delta', {
      ...this.itemPath('msg'),
      content_index: 0,
      delta: text,
      logprobs: [],
    });
  }

  private enterCall({ index, id, name }: CallHead): string {
    const call = { index, id, name };
    this.open = { kind: 'call', call, text: '' };
    return this.itemAdded(callItem(this.head.completionId, call, '', 'in_progress', this.request));
  }

  /**
   * Encodes a piece of a tool call's arguments. The input of a custom tool can be decoded only from the complete arguments, so it is sent
   * when the call is closed.
   */
  private argumentsDelta(text: string): string {
    if (this.open?.kind !== 'call') return '';
    this.open.text += text;
    const { call } = this.open;
    if (isCustomTool(call.name, this.request)) return '';
    return this.events.encode('function_call_arguments.delta', { ...this.callPath(call), delta: text });
  }

  private close(status: ItemStatus): string {
    const { open } = this;
    if (open === null) return '';
    this.open = null;
    switch (open.kind) {
      case 'reasoning':
        return this.reasoningDone(open.text);
      case 'text':
        return this.textDone(open.text, status);
      case 'call':
        this.events.hold();
        return this.callDone(open.call, open.text, status);
    }
  }

  private reasoningDone(text: string): string {
    const at = { ...this.itemPath('rs'), summary_index: 0 };
    return (
      this.events.encode('reasoning_summary_text.done', { ...at, text }) +
      this.events.encode('reasoning_summary_part.done', { ...at, part: { type: 'summary_text', text } }) +
      this.itemDone(reasoningItem(this.head.completionId, text, this.request))
    );
  }

  private textDone(text: string, status: ItemStatus): string {
    const at = { ...this.itemPath('msg'), content_index: 0 };
    return (
      this.events.encode('output_text.done', { ...at, text, logprobs: [] }) +
      this.events.encode('content_part.done', { ...at, part: textPart(text) }) +
      this.itemDone(messageItem(this.head.completionId, text, status))
    );
  }

  private callDone(call: CallHead, text: string, status: ItemStatus): string {
    const at = this.callPath(call);
    const item = callItem(this.head.completionId, call, text, status, this.request);
    if (!isCustomTool(call.name, this.request)) {
      const name = this.request.toolForms.get(call.name)?.name ?? call.name;
      return this.events.encode('function_call_arguments.done', { ...at, name, arguments: text }) + this.itemDone(item);
    }
    const input = customInput(text);
    const delta = input === '' ? '' : this.events.encode('custom_tool_call_input.delta', { ...at, delta: input });
    return delta + this.events.encode('custom_tool_call_input.done', { ...at, input }) + this.itemDone(item);
  }

  private itemAdded(item: object): string {
    return this.events.encode('output_item.added', { output_index: ++this.index, item });
  }

  private itemDone(item: object): string {
    return this.events.encode('output_item.done', { output_index: this.index, item });
  }

  private itemPath(prefix: 'rs' | 'msg'): object {
    return { item_id: itemId(prefix, this.head.completionId), output_index: this.index };
  }

  private callPath(call: CallHead): object {
    return { item_id: callItemId(call, this.head.completionId, this.request), output_index: this.index };
  }
}

/**
 * Encodes the only item of a reply to a compaction request. Its text is encoded as a whole, so no part of it can be sent before the end.
 */
class CompactionStream implements ReplyStream {
  private readonly head: ReplyHead;
  private readonly request: CanonicalRequest;
  private readonly events = new EventEncoder();

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

  heartbeat(): string {
    return this.events.heartbeat();
  }

  fail(error: FloeError): string {
    return this.events.fail(error, this.head, this.request);
  }

  end(reply: CanonicalReply): StreamEnd {
    const at = { output_index: 0, item: compactionItem(reply) };
    const body = this.events.encode('output_item.added', at) + this.events.encode('output_item.done', at);
    return { body, end: this.events.end(reply, this.request) };
  }
}
