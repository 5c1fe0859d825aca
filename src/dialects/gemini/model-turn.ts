import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import { argumentText } from './call-arguments.ts';
import type { CallIds, TurnCall } from './calls.ts';
import type { ForeignPart } from './schema.ts';
import { signedBy } from './thought-signature.ts';

type ForeignCall = NonNullable<ForeignPart['functionCall']>;

/** One assistant turn in the making. */
export class ModelTurn {
  readonly calls: TurnCall[] = [];
  /** The completion that signatures name. */
  completionId: string | null = null;
  private readonly index: number;
  private readonly ids: CallIds;
  private readonly toolCalls: ToolCall[] = [];
  private content = '';
  private reasoning = '';
  /** Thought parts came since the last signature of ours, which then says the same. */
  private thought = false;

  /** `index` counts the assistant turns of the conversation. */
  constructor(index: number, ids: CallIds) {
    this.index = index;
    this.ids = ids;
  }

  text(text: string): void {
    this.content += text;
  }

  think(text: string): void {
    this.reasoning += text;
    this.thought = true;
  }

  /** What was thought up to the part that carries it; a foreign one says nothing. */
  signature(signature: string): void {
    const signed = signedBy(signature);
    if (signed === null) return;
    this.completionId ??= signed.completionId;
    if (!this.thought) this.reasoning += signed.thinking;
    this.thought = false;
  }

  call({ name, args, id }: ForeignCall): void {
    // An empty string is how a missing one is written in protocol buffers.
    const given = Boolean(id);
    const known = id || this.ids.idOf(this.index, this.calls.length);
    this.calls.push({ id: known, name, given });
    this.toolCalls.push({ id: known, type: 'function', function: { name, arguments: argumentText(args ?? {}) } });
  }

  message(): AssistantMessage {
    const { content, reasoning, toolCalls } = this;
    return {
      role: 'assistant',
      content: content === '' && toolCalls.length > 0 ? null : content,
      ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    };
  }
}
