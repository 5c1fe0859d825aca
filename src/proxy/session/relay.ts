import type { ReplyDelta } from '../../core/reply.ts';
import type { ReplyListener } from '../../engines/engine.ts';
import type { AssistantMessage } from '../../schema/index.ts';
import { callIdOf } from '../prompt/call-ids.ts';

type GrowingCall = { readonly id: string; readonly name: string; text: string };

/**
 * What is known of a reply while it is sampled. Clients are told that there is more, once for all that came in one turn of the
 * event loop, and send what they have not sent yet: one that came late, or could not take more for a while, catches up.
 */
export class Relay implements ReplyListener {
  promptTokens: number | null = null;
  private readonly completionId: string;
  private reasoning = '';
  private text = '';
  private readonly calls: GrowingCall[] = [];
  private readonly readers = new Set<() => void>();
  private begun = false;
  private scheduled = false;

  constructor(completionId: string) {
    this.completionId = completionId;
  }

  started(promptTokens: number | null): void {
    this.promptTokens = promptTokens;
  }

  delta(delta: ReplyDelta): void {
    this.begun = true;
    switch (delta.kind) {
      case 'reasoning':
        this.reasoning += delta.text;
        break;
      case 'text':
        this.text += delta.text;
        break;
      case 'call':
        this.calls[delta.index] = { id: callIdOf(this.completionId, delta.index), name: delta.name, text: '' };
        break;
      case 'arguments': {
        const call = this.calls[delta.index];
        if (call !== undefined) call.text += delta.text;
      }
    }
    if (this.scheduled) return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      for (const reader of this.readers) reader();
    });
  }

  /** The message as far as it is known; null before its first delta. */
  get message(): AssistantMessage | null {
    if (!this.begun) return null;
    const { reasoning, text, calls } = this;
    return {
      role: 'assistant',
      content: text,
      reasoning_content: reasoning,
      tool_calls: calls.map(({ id, name, text }) => ({ id, type: 'function', function: { name, arguments: text } })),
    };
  }

  /** Calls `reader` whenever there is more, which must not throw. Returns the function that ends it. */
  read(reader: () => void): () => void {
    this.readers.add(reader);
    return () => void this.readers.delete(reader);
  }
}
