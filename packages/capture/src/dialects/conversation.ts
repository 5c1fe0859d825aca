import { wellFormed, wellFormedCalls } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, Content, ContentPart, ToolChoice } from '@floe-rl/core/schema';

/** Separator that joins the text parts of one message. Engines use the same separator for chat templates that accept only strings. */
const PART_SEPARATOR = '\n';

/**
 * Maximum number of notes about one request. A note is a phrase that states what floe dropped or changed when it translated the request.
 * The notes are stored with the recorded reply, so their number is limited.
 */
const MAX_NOTES = 64;
/** A note is cut after this many characters, because it may quote a text of any length from the client. */
const MAX_NOTE_CHARS = 160;

/**
 * Converts content parts to the content of a message: one string when all parts are text, otherwise the list of parts. The prompt is
 * therefore the same whether a harness sends text as a string or as parts.
 */
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
 * Collects the messages of a request in the form that all dialects are translated to. Chat templates differ in what they accept, so three
 * things are normalised. System text at the start becomes one message. Later system text is merged into the adjacent user message. Images
 * in a tool result are moved into a user message after it. Each of these changes affects only messages between two assistant messages, so
 * earlier messages keep their form when the conversation grows.
 */
export class Conversation {
  private readonly messages: ChatMessage[] = [];
  private readonly notes = new Set<string>();
  private readonly claimedCompletions = new Map<ChatMessage, string>();
  private toolImages: ContentPart[] = [];
  /** Whether the next user content is appended to the last user message instead of starting a new message. */
  private isUserMessageOpen = false;

  /** Adds a note that states what the translation of the request dropped or changed. */
  note(phrase: string): void {
    // The note is a copy, because a slice would keep the client's whole text in memory for as long as the completion.
    if (this.notes.size < MAX_NOTES) this.notes.add(Buffer.from(phrase.slice(0, MAX_NOTE_CHARS)).toString());
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

  /**
   * Adds an assistant message, with U+FFFD in place of lone surrogates that the arguments of its calls escape. `completionId` is the completion id that the client returned with the message, in a signature or an item id;
   * `null` when it returned none.
   */
  assistant(received: AssistantMessage, completionId: string | null = null): void {
    this.flushToolImages();
    const message = wellFormedCalls(received);
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
   * Adds a note for a tool result that answers no call, and for a call id that occurs twice. Callers may use it only when the request
   * contains the whole conversation, because a call may otherwise be in an earlier request.
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

  /** Returns the tool choice that forces the model to call the tool `name`; `null` when `tools` does not contain it. */
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
   * Appends user content. With `folded`, it is merged with the user content before and after it. Merging takes time proportional to the new
   * content and not to the existing message, because a request may contain any number of pieces.
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

/** Normalises messages that are already in the canonical form, such as the messages of a request over HTTP. Lone surrogates become U+FFFD. */
export function normalised(
  messages: readonly ChatMessage[],
): Pick<ReturnType<Conversation['finish']>, 'messages' | 'adjusted'> {
  const conversation = new Conversation();
  for (const message of wellFormed(messages)) {
    if (message.role === 'assistant') {
      conversation.assistant(message);
      continue;
    }
    const parts = partsOf(message.content);
    if (message.role === 'tool') conversation.tool(message.tool_call_id, parts);
    else if (message.role === 'user') conversation.user(contentOf(parts));
    else conversation.system(parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join(PART_SEPARATOR));
  }
  return conversation.finish();
}

/** Copies a list of content parts, because the conversation may later append parts to the list that it stores. */
function copyOf(content: Content): Content {
  return typeof content === 'string' ? content : [...content];
}
