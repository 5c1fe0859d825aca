import { FloeError, messageOf } from '@floe-rl/core';
import type { ChatMessage, Content } from '@floe-rl/core/schema';
import { Template } from '@huggingface/jinja';
import type { RenderRequest } from '../engine.ts';

/** The messages and tools that a chat template renders. */
export type Conversation = Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>;

/** A model's chat template in Jinja. Messages are prepared for it as vLLM does for the templates of Hugging Face models. */
export class ChatTemplate {
  /** The template's source, or both sources when the model has a separate template for requests with tools. */
  readonly source: string;
  private readonly plain: Template;
  private readonly withTools: Template;
  private readonly specialTokens: Readonly<Record<string, string>>;

  /**
   * `toolSource` is the template for requests with tools; `null` when one template is for all requests. `specialTokens` are the texts that
   * templates use by name, such as `bos_token`. Throws an Error for a template that cannot be parsed.
   */
  constructor(source: string, toolSource: string | null, specialTokens: Readonly<Record<string, string>>) {
    this.source = source + (toolSource ?? '');
    this.plain = new Template(source);
    this.withTools = toolSource === null ? this.plain : new Template(toolSource);
    this.specialTokens = specialTokens;
  }

  /**
   * Renders a conversation to the text of a prompt. Throws `engine_rejected` with the template's message when the template refuses the
   * messages, and `unsupported` for a message with an image.
   */
  render({ messageTexts, toolsText, generationPrompt }: Conversation): string {
    const messages = messageTexts.map((text) => templateMessage(JSON.parse(text) as ChatMessage));
    const tools = JSON.parse(toolsText) as readonly unknown[];
    const hasTools = tools.length > 0;
    try {
      return (hasTools ? this.withTools : this.plain).render({
        messages,
        tools: hasTools ? tools : null,
        add_generation_prompt: generationPrompt,
        ...this.specialTokens,
      });
    } catch (cause) {
      const reason = messageOf(cause);
      throw new FloeError('engine_rejected', `the chat template refuses the messages: ${reason}`, {}, cause);
    }
  }
}

/**
 * Converts a message to the form that chat templates expect: content is one text, and arguments of tool calls are objects where they are
 * valid JSON.
 */
function templateMessage(message: ChatMessage): object {
  if (message.role !== 'assistant') return { ...message, content: templateText(message.content) };
  const { tool_calls: calls, content, ...rest } = message;
  return {
    ...rest,
    content: content ?? '',
    ...(calls === undefined
      ? {}
      : {
          tool_calls: calls.map(({ function: called, ...call }) => ({
            ...call,
            function: { ...called, arguments: objectOf(called.arguments) },
          })),
        }),
  };
}

function templateText(content: Content): string {
  if (typeof content === 'string') return content;
  return content
    .map((part) => {
      if (part.type === 'text') return part.text;
      throw new FloeError('unsupported', 'images cannot be rendered to ids', { images: true });
    })
    .join('\n');
}

/** Returns the object that a JSON text describes, or the text itself when it describes none. */
function objectOf(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : text;
  } catch {
    return text;
  }
}
