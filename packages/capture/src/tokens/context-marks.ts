import type { ChatMessage } from '@floe-rl/core/schema';
import { sharedMessages } from './codec.ts';
import type { TokenGraph } from './graph.ts';

/** Properties of a context that its token ids do not show. */
export type ContextMarks = {
  /** Number of images. The ids contain only placeholders for an image. */
  readonly images: number;
  /**
   * Number of texts with the form of a special token in messages that the policy did not write: system text, user messages and tool results.
   * Engines encode such a text as the special token itself, so that a tool's output can, for example, end its turn and begin another one.
   */
  readonly specialTokens: number;
};

const NO_MARKS: ContextMarks = { images: 0, specialTokens: 0 };

/**
 * The forms of special tokens in the chat templates of common models: `<|name|>` (Qwen, Llama, GLM, gpt-oss and others), the same with
 * full-width bars (DeepSeek), turn and sequence marks (Gemma), and marks in brackets (Mistral). `<s>` and `</s>` are left out, because they
 * are more often HTML. No alternative contains the character that begins it a second time, so that matching takes linear time.
 */
const SPECIAL_TOKEN =
  /<\|[^|<>\s]{1,64}\|>|<｜[^｜<>\s]{1,64}｜>|<(?:start_of_turn|end_of_turn|bos|eos|pad|unk)>|\[\/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]/g;

/** Counts the {@link ContextMarks} of messages. A message that several requests share is read only once. */
export class MarkCounter {
  private readonly known = new WeakMap<ChatMessage, ContextMarks>();

  /** Returns the {@link ContextMarks} of all messages, added up. */
  of(messages: readonly ChatMessage[]): ContextMarks {
    return messages.map((message) => this.ofMessage(message)).reduce(sum, NO_MARKS);
  }

  private ofMessage(message: ChatMessage): ContextMarks {
    const known = this.known.get(message);
    if (known !== undefined) return known;
    const marks = marksOf(message);
    this.known.set(message, marks);
    return marks;
  }
}

/** Returns the marks of all messages of a session's requests. A message that a request repeats from an earlier one is counted once. */
export function marksOfSession({ nodes }: TokenGraph): ContextMarks {
  const counter = new MarkCounter();
  const added = nodes.map(({ completion, parent, forkOf }) => {
    const base = (parent ?? forkOf)?.completion;
    const { messages } = completion.request;
    return counter.of(base === undefined ? messages : messages.slice(sharedMessages(completion, base)));
  });
  return added.reduce(sum, NO_MARKS);
}

function marksOf(message: ChatMessage): ContextMarks {
  if (message.role === 'assistant') return NO_MARKS;
  const { content } = message;
  if (typeof content === 'string') return { images: 0, specialTokens: specialTokensIn(content) };
  return content
    .map((part) =>
      part.type === 'text' ? { images: 0, specialTokens: specialTokensIn(part.text) } : { images: 1, specialTokens: 0 },
    )
    .reduce(sum, NO_MARKS);
}

function specialTokensIn(text: string): number {
  return text.match(SPECIAL_TOKEN)?.length ?? 0;
}

function sum(a: ContextMarks, b: ContextMarks): ContextMarks {
  return { images: a.images + b.images, specialTokens: a.specialTokens + b.specialTokens };
}
