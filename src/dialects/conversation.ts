import type { AssistantMessage, ChatMessage, ChatTool, Content, ContentPart, ToolChoice } from '../schema/index.ts';

/** Separator that joins the text parts of one message. Engines insert the same one for templates that accept only strings. */
const PART_SEPARATOR = '\n';

/**
 * Maximum number of notes of one translation. Notes are stored with every completion and some quote what a client sent, so their number
 * and length are limited.
 */
const MAX_NOTES = 64;
const MAX_NOTE_CHARS = 160;

/** Converts parts to canonical content: a string when all of them are text, so that a harness may switch between the two forms. */
export function contentOf(parts: readonly ContentPart[]): Content {
  const texts: string[] = [];
  for (const part of parts) {
    if (part.type !== 'text') return [...parts];
    texts.push(part.text);
  }
  return texts.join(PART_SEPARATOR);
}

function partsOf(content: Content): ContentPart[] {
  if (typeof content !== 'string') return content;
  return content === '' ? [] : [{ type: 'text', text: content }];
}

/**
 * Collects the messages of a request in canonical order. Chat templates differ in what they accept, so three things are normalised:
 * system text becomes one message at the start; later system text is merged into the adjacent user message; images in a tool result are
 * moved into a user message after it. Each rule affects only messages between two assistant messages, so the canonical form of earlier
 * messages does not change when the conversation grows.
 */
export class Conversation {
  private readonly messages: ChatMessage[] = [];
  private readonly notes = new Set<string>();
  private readonly claimedCompletions = new Map<ChatMessage, string>();
  private toolImages: ContentPart[] = [];
  /** Whether the next user content is appended to the last user message. */
  private isUserMessageOpen = false;

  /** Records one thing that the translation dropped or changed. */
  note(phrase: string): void {
    if (this.notes.size < MAX_NOTES) this.notes.add(phrase.slice(0, MAX_NOTE_CHARS));
  }

  system(text: string): void {
    const last = this.messages.at(-1);
    if (last === undefined) {
      this.messages.push({ role: 'system', content: text });
    } else if (last.role === 'system') {
      this.messages[this.messages.length - 1] = { role: 'system', content: `${last.content}${PART_SEPARATOR}${text}` };
      this.note('system messages joined');
    } else {
      this.note('later system message merged into a user message');
      this.flushToolImages();
      this.appendUser(text, true);
    }
  }

  user(content: Content): void {
    this.flushToolImages();
    this.appendUser(content, false);
  }

  /** Adds an assistant message. `completionId` is the completion that the message's signatures name; `null` when they name none. */
  assistant(message: AssistantMessage, completionId: string | null = null): void {
    this.flushToolImages();
    this.messages.push(message);
    if (completionId !== null) this.claimedCompletions.set(message, completionId);
    this.isUserMessageOpen = false;
  }

  tool(toolCallId: string, parts: readonly ContentPart[]): void {
    const images = parts.filter((part) => part.type === 'image_url');
    if (images.length > 0) {
      this.note('image of a tool result moved to a user message');
      for (const image of images) this.toolImages.push(image);
    }
    const content = contentOf(parts.filter((part) => part.type === 'text'));
    this.messages.push({ role: 'tool', tool_call_id: toolCallId, content });
    this.isUserMessageOpen = false;
  }

  /**
   * Notes tool results without a call, and call ids that occur twice. It may be called only when the request contains the whole
   * conversation.
   */
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

  /** Returns the tool choice that forces one tool; `null` when the canonical request does not contain that tool. */
  forcedTool(name: string, tools: readonly ChatTool[]): ToolChoice | null {
    if (tools.some((tool) => tool.function.name === name)) return { type: 'function', function: { name } };
    this.note('tool_choice ignored: it names no tool of the request');
    return null;
  }

  finish(): { messages: ChatMessage[]; adjusted: string[]; claimedCompletions: ReadonlyMap<ChatMessage, string> } {
    this.flushToolImages();
    return { messages: this.messages, adjusted: [...this.notes], claimedCompletions: this.claimedCompletions };
  }

  private flushToolImages(): void {
    if (this.toolImages.length === 0) return;
    const images = this.toolImages;
    this.toolImages = [];
    this.appendUser(images, true);
  }

  /**
   * Appends user content. With `folded`, the content is merged with the user content before and after it. The time is proportional to
   * the new content and not to the message it is appended to, because a request may contain any number of pieces.
   */
  private appendUser(content: Content, folded: boolean): void {
    const last = this.messages.at(-1);
    if (last?.role !== 'user' || !(folded || this.isUserMessageOpen)) {
      this.messages.push({ role: 'user', content: copyOf(content) });
    } else if (typeof last.content !== 'string') {
      for (const part of partsOf(content)) last.content.push(part);
    } else if (typeof content === 'string') {
      const separator = last.content === '' || content === '' ? '' : PART_SEPARATOR;
      last.content = `${last.content}${separator}${content}`;
    } else {
      last.content = contentOf([...partsOf(last.content), ...content]);
    }
    this.isUserMessageOpen = folded;
  }
}

/** Copies a list of parts, because the conversation may append to it. */
function copyOf(content: Content): Content {
  return typeof content === 'string' ? content : [...content];
}
