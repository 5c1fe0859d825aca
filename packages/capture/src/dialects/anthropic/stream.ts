import type { FloeError } from '@floe-rl/core';
import type { ReplyDelta } from '../../reply.ts';
import type { CanonicalReply, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { typedEvent } from '../reply-stream.ts';
import { errorObject } from './errors.ts';
import { stopOf, usageOf } from './reply.ts';

export function openMessagesStream(head: ReplyHead): ReplyStream {
  return new MessagesStream(head);
}

type BlockKind = 'thinking' | 'text' | 'tool_use';

/**
 * Encodes the content blocks of a reply one after another: a delta of another kind, or of the next tool call, closes the open block. Some
 * clients run a tool as soon as its block is closed. The event that closes the first `tool_use` block and all events after it are therefore
 * held back until the reply is recorded on disk.
 */
class MessagesStream implements ReplyStream {
  private readonly head: ReplyHead;
  private index = -1;
  private open: BlockKind | null = null;
  /** Events that are held back and sent with the end of the reply; `null` until the first `tool_use` block is closed. */
  private held: string | null = null;

  constructor(head: ReplyHead) {
    this.head = head;
  }

  start(): string {
    const { completionId, model, promptTokens } = this.head;
    return typedEvent('message_start', {
      message: {
        id: completionId,
        type: 'message',
        role: 'assistant',
        model,
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: {
          input_tokens: promptTokens ?? 0,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 0,
          output_tokens: 0,
        },
      },
    });
  }

  delta(delta: ReplyDelta): string {
    const events = this.eventsOf(delta);
    if (this.held === null) return events;
    this.held += events;
    return '';
  }

  heartbeat(): string {
    return typedEvent('ping', {});
  }

  fail(error: FloeError): string {
    return `event: error\ndata: ${JSON.stringify(errorObject(error))}\n\n`;
  }

  end(reply: CanonicalReply): StreamEnd {
    const close = this.closeBlock();
    const end =
      typedEvent('message_delta', { delta: stopOf(reply), usage: usageOf(reply) }) + typedEvent('message_stop', {});
    return this.held === null ? { body: close, end } : { body: '', end: this.held + close + end };
  }

  private eventsOf(delta: ReplyDelta): string {
    switch (delta.kind) {
      case 'reasoning':
        return (
          this.openBlock('thinking', { type: 'thinking', thinking: '', signature: '' }) +
          this.blockDelta({ type: 'thinking_delta', thinking: delta.text })
        );
      case 'text':
        return (
          this.openBlock('text', { type: 'text', text: '' }) + this.blockDelta({ type: 'text_delta', text: delta.text })
        );
      case 'call':
        return (
          this.closeBlock() +
          this.openBlock('tool_use', { type: 'tool_use', id: delta.id, name: delta.name, input: {} }) +
          // An empty delta is sent even for a tool call without arguments, as Anthropic's API does.
          this.blockDelta({ type: 'input_json_delta', partial_json: '' })
        );
      case 'arguments':
        return this.blockDelta({ type: 'input_json_delta', partial_json: delta.text });
    }
  }

  /** Opens a content block and closes the block that was open before. Does nothing when a block of this kind is already open. */
  private openBlock(kind: BlockKind, block: object): string {
    if (this.open === kind) return '';
    const closed = this.closeBlock();
    this.open = kind;
    return closed + typedEvent('content_block_start', { index: ++this.index, content_block: block });
  }

  private blockDelta(delta: object): string {
    return typedEvent('content_block_delta', { index: this.index, delta });
  }

  private closeBlock(): string {
    if (this.open === null) return '';
    const signature =
      this.open === 'thinking' ? this.blockDelta({ type: 'signature_delta', signature: this.head.completionId }) : '';
    if (this.open === 'tool_use') this.held ??= '';
    this.open = null;
    return signature + typedEvent('content_block_stop', { index: this.index });
  }
}
