import type { AssistantMessage, ChatMessage, ChatTool, Content, ContentPart, ToolChoice } from '../schema/index.ts';

/** Between text blocks of one message: what engines put there themselves when a template takes strings. */
const BLOCK_SEPARATOR = '\n';

/** Notes are kept with every completion, and some quote what a client sent: more and longer ones tell nothing new. */
const MAX_NOTES = 64;
const MAX_NOTE_CHARS = 160;

/** Parts as canonical content: a string where there is only text, so that a harness may switch between both forms. */
export function contentOf(parts: readonly ContentPart[]): Content {
  const texts: string[] = [];
  for (const part of parts) {
    if (part.type !== 'text') return [...parts];
    texts.push(part.text);
  }
  return texts.join(BLOCK_SEPARATOR);
}

function partsOf(content: Content): ContentPart[] {
  if (typeof content !== 'string') return content;
  return content === '' ? [] : [{ type: 'text', text: content }];
}

/**
 * Collects messages in canonical order. Chat templates differ in what they accept, so three things are evened out:
 * system text leads the conversation in one message; system text further down joins the user turn beside it; images in a tool
 * result follow it in a user message. Each rule only looks at messages between two assistant turns, so a conversation
 * that grows keeps its canonical beginning.
 */
export class Conversation {
  private readonly messages: ChatMessage[] = [];
  private readonly notes = new Set<string>();
  private readonly turnRefs = new Map<ChatMessage, string>();
  private toolImages: ContentPart[] = [];
  /** The next user content belongs into the last user message. */
  private open = false;

  note(phrase: string): void {
    if (this.notes.size < MAX_NOTES) this.notes.add(phrase.slice(0, MAX_NOTE_CHARS));
  }

  system(text: string): void {
    const last = this.messages.at(-1);
    if (last === undefined) {
      this.messages.push({ role: 'system', content: text });
    } else if (last.role === 'system') {
      this.messages[this.messages.length - 1] = { role: 'system', content: `${last.content}${BLOCK_SEPARATOR}${text}` };
      this.note('system messages joined');
    } else {
      this.note('later system message folded into the user turn');
      this.flushToolImages();
      this.appendUser(text, true);
    }
  }

  user(content: Content): void {
    this.flushToolImages();
    this.appendUser(content, false);
  }

  /** `completionId`: the completion that its signatures name; null: none. */
  assistant(message: AssistantMessage, completionId: string | null = null): void {
    this.flushToolImages();
    this.messages.push(message);
    if (completionId !== null) this.turnRefs.set(message, completionId);
    this.open = false;
  }

  tool(toolCallId: string, parts: readonly ContentPart[]): void {
    const images = parts.filter((part) => part.type === 'image_url');
    if (images.length > 0) {
      this.note('image of a tool result moved to a user message');
      for (const image of images) this.toolImages.push(image);
    }
    const content = contentOf(parts.filter((part) => part.type === 'text'));
    this.messages.push({ role: 'tool', tool_call_id: toolCallId, content });
    this.open = false;
  }

  /** Notes ids that pair calls and results wrongly. For dialects whose every request holds the whole conversation. */
  noteCallIds(): void {
    const ids = new Set<string>();
    for (const message of this.messages) {
      if (message.role === 'tool' && !ids.has(message.tool_call_id)) this.note('a tool result answers no call');
      if (message.role !== 'assistant') continue;
      for (const { id } of message.tool_calls ?? []) {
        if (ids.has(id)) this.note('a tool call id occurs twice');
        ids.add(id);
      }
    }
  }

  /** The choice of one tool; null when it is none of those that the policy gets to see. */
  forcedTool(name: string, tools: readonly ChatTool[]): ToolChoice | null {
    if (tools.some((tool) => tool.function.name === name)) return { type: 'function', function: { name } };
    this.note('tool_choice ignored: it names no tool of the request');
    return null;
  }

  finish(): { messages: ChatMessage[]; adjusted: string[]; turnRefs: ReadonlyMap<ChatMessage, string> } {
    this.flushToolImages();
    return { messages: this.messages, adjusted: [...this.notes], turnRefs: this.turnRefs };
  }

  private flushToolImages(): void {
    if (this.toolImages.length === 0) return;
    const images = this.toolImages;
    this.toolImages = [];
    this.appendUser(images, true);
  }

  /**
   * A `folded` piece of user content is merged with user content on either side of it. In time by the size of the piece, not of
   * what it joins: a request may hold any number of pieces.
   */
  private appendUser(content: Content, folded: boolean): void {
    const last = this.messages.at(-1);
    if (last?.role !== 'user' || !(folded || this.open)) {
      this.messages.push({ role: 'user', content: ownedContent(content) });
    } else if (typeof last.content !== 'string') {
      for (const part of partsOf(content)) last.content.push(part);
    } else if (typeof content === 'string') {
      const separator = last.content === '' || content === '' ? '' : BLOCK_SEPARATOR;
      last.content = `${last.content}${separator}${content}`;
    } else {
      last.content = contentOf([...partsOf(last.content), ...content]);
    }
    this.open = folded;
  }
}

/** A copy where the conversation goes on to write in it. */
function ownedContent(content: Content): Content {
  return typeof content === 'string' ? content : [...content];
}
