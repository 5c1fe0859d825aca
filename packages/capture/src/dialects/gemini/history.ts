import { type FloeError, fieldError } from '@floe-rl/core';
import type { AssistantMessage, ContentPart, ToolCall } from '@floe-rl/core/schema';
import { type Conversation, contentOf } from '../conversation.ts';
import type { JsonObject } from '../json-object.ts';
import { decodeThoughtSignature } from '../opaque-fields.ts';
import { argumentText, CallIds, OpenCalls, type TurnCall } from './calls.ts';
import { REQUEST_NAME, type WireContent, type WireMedia, type WirePart, type WireResult } from './schema.ts';

/** Names of the fields that state the kind of a content part. A part has exactly one of these fields. */
type PartKind = Exclude<keyof WirePart, 'thought' | 'thoughtSignature'>;

/**
 * Adds `contents` to a conversation; `at` is their path in the request. Throws `schema_violation` for a part that a content of this role
 * must not contain.
 */
export function addContents(conversation: Conversation, contents: readonly WireContent[], at: string): void {
  const reader = new ContentsReader(conversation, contents);
  for (const [index, { role, parts }] of contents.entries()) {
    const path = `${at}.${index}.parts`;
    if (role === 'model') reader.model(parts ?? [], path);
    else reader.user(parts ?? [], path);
  }
  reader.closeTurn();
}

/** Returns the text of a system instruction. Parts that are not text are dropped. */
export function instructionText(conversation: Conversation, parts: readonly WirePart[], at: string): string {
  const texts: ContentPart[] = [];
  for (const [index, part] of parts.entries()) {
    if (kindOf(part, `${at}.${index}`) === 'text') texts.push({ type: 'text', text: part.text ?? '' });
    else conversation.note('part of the system instruction that is not text dropped');
  }
  const content = contentOf(texts);
  return typeof content === 'string' ? content : '';
}

/** A tool result that is not complete yet, because its images may follow in the next parts. */
type OpenResult = { readonly callId: string; readonly parts: ContentPart[] };

class ContentsReader {
  private readonly conversation: Conversation;
  private readonly ids: CallIds;
  private turn: AssistantTurn | null = null;
  private turnCount = 0;
  private openCalls = new OpenCalls([]);

  constructor(conversation: Conversation, contents: readonly WireContent[]) {
    this.conversation = conversation;
    this.ids = new CallIds(contents);
  }

  /**
   * Adds a content with the role `model`. Consecutive contents with this role form one assistant turn, because clients split and join
   * turns.
   */
  model(parts: readonly WirePart[], at: string): void {
    this.turn ??= new AssistantTurn(this.turnCount++, this.ids);
    for (const [index, part] of parts.entries()) this.modelPart(this.turn, part, `${at}.${index}`);
  }

  /**
   * Adds a content with the role `user`. The tool results in it are added first, because they answer the assistant turn; the other parts
   * follow as one user message.
   */
  user(parts: readonly WirePart[], at: string): void {
    this.closeTurn();
    const rest: ContentPart[] = [];
    let results = 0;
    let result: OpenResult | null = null;
    for (const [index, part] of parts.entries()) {
      const path = `${at}.${index}`;
      const kind = kindOf(part, path);
      if (kind === 'functionResponse') {
        if (rest.length > 0) this.conversation.note('text before a tool result moved after it');
        this.closeResult(result);
        result = this.resultOf(part.functionResponse as WireResult, path);
        results++;
        continue;
      }
      const content = this.userPart(part, kind, path);
      if (content === null) continue;
      if (content.type === 'image_url' && result !== null) {
        result.parts.push(content);
        continue;
      }
      this.closeResult(result);
      result = null;
      rest.push(content);
    }
    this.closeResult(result);
    if (rest.length > 0 || results === 0) this.conversation.user(contentOf(rest));
  }

  closeTurn(): void {
    if (this.turn === null) return;
    this.conversation.assistant(this.turn.message(), this.turn.completionId);
    this.openCalls = new OpenCalls(this.turn.calls);
    this.turn = null;
  }

  private modelPart(turn: AssistantTurn, part: WirePart, at: string): void {
    const kind = kindOf(part, at);
    switch (kind) {
      case 'text':
        if (part.thought === true) turn.think(part.text ?? '');
        else turn.text(part.text ?? '');
        break;
      case 'functionCall':
        if (part.functionCall) turn.call(part.functionCall);
        break;
      case 'functionResponse':
        throw wrongField(`${at}.functionResponse`, 'a content with the role model cannot contain results');
      case 'inlineData':
      case 'fileData':
        this.conversation.note('media outside a user content dropped');
        break;
      default:
        this.noteDropped(part, kind);
    }
    if (part.thoughtSignature) turn.signature(part.thoughtSignature);
  }

  private userPart(part: WirePart, kind: PartKind | null, at: string): ContentPart | null {
    switch (kind) {
      case 'text':
        if (part.thought !== true) return { type: 'text', text: part.text ?? '' };
        this.conversation.note('thought outside a model content dropped');
        return null;
      case 'functionCall':
        throw wrongField(`${at}.functionCall`, 'only a content with the role model can contain calls');
      case 'inlineData':
      case 'fileData':
        return this.imageOf(part);
      default:
        this.noteDropped(part, kind);
        return null;
    }
  }

  private noteDropped(part: WirePart, kind: PartKind | null): void {
    if (kind !== null) this.conversation.note(`${kind} part dropped`);
    else if (!part.thoughtSignature && part.thought !== true) this.conversation.note('part of an unknown kind dropped');
  }

  private imageOf({ inlineData, fileData }: WireMedia): ContentPart | null {
    const type = inlineData?.mimeType ?? fileData?.mimeType ?? '';
    if (/^image\//i.test(type)) {
      if (inlineData) return { type: 'image_url', image_url: { url: `data:${type};base64,${inlineData.data}` } };
      const url = fileData?.fileUri ?? '';
      if (/^https?:\/\//i.test(url)) return { type: 'image_url', image_url: { url } };
      this.conversation.note('image that only Google can fetch dropped');
      return null;
    }
    this.conversation.note('media other than images dropped');
    return null;
  }

  private resultOf(result: WireResult, at: string): OpenResult {
    const callId = this.openCalls.answer(result.name, result.id || null);
    if (callId === null) {
      throw wrongField(`${at}.functionResponse`, 'it answers no open call of the model content before it');
    }
    const text = this.resultText(result.response ?? null);
    const parts: ContentPart[] = text === '' ? [] : [{ type: 'text', text }];
    for (const media of result.parts ?? []) {
      const image = this.imageOf(media);
      if (image !== null) parts.push(image);
    }
    return { callId, parts };
  }

  /**
   * Converts the response of a tool result to text. Google's API defines the fields `output` and `error`; an object with any other field
   * is itself the result.
   */
  private resultText(response: JsonObject | null): string {
    if (response === null) return '';
    const [field, ...others] = Object.keys(response);
    if (others.length > 0 || (field !== 'output' && field !== 'error')) return JSON.stringify(response);
    if (field === 'error') this.conversation.note('error of a tool result sent as its text');
    const value = response[field];
    return typeof value === 'string' ? value : JSON.stringify(value);
  }

  private closeResult(result: OpenResult | null): void {
    if (result !== null) this.conversation.tool(result.callId, result.parts);
  }
}

/** Returns the kind of a content part; `null` when it has no known field. Throws `schema_violation` when it has fields of several kinds. */
function kindOf(part: WirePart, at: string): PartKind | null {
  let kind: PartKind | null = null;
  // The schema removes unknown fields, so every key is a key of `WirePart`.
  for (const key of Object.keys(part) as (keyof WirePart)[]) {
    if (key === 'thought' || key === 'thoughtSignature' || part[key] === undefined || part[key] === null) continue;
    if (kind !== null) throw wrongField(at, `a part is one of ${kind} and ${key}, not both`);
    kind = key;
  }
  return kind;
}

function wrongField(path: string, message: string): FloeError {
  return fieldError(path, message, { input: REQUEST_NAME });
}

type WireCall = NonNullable<WirePart['functionCall']>;

/** Builds one assistant message from the parts of an assistant turn. */
class AssistantTurn {
  readonly calls: TurnCall[] = [];
  /** Completion id in the signatures of the turn; `null` when they contain none. */
  completionId: string | null = null;
  private readonly index: number;
  private readonly ids: CallIds;
  private readonly toolCalls: ToolCall[] = [];
  private content = '';
  private reasoning = '';
  /** Whether thought parts arrived after the last signature that floe made. The next signature then repeats the text of these parts. */
  private hasUnsignedThought = false;

  /** Starts an assistant turn. `index` is the number of assistant turns before this one. */
  constructor(index: number, ids: CallIds) {
    this.index = index;
    this.ids = ids;
  }

  text(text: string): void {
    this.content += text;
  }

  think(text: string): void {
    this.reasoning += text;
    this.hasUnsignedThought = true;
  }

  /**
   * Restores the thinking that a signature contains, unless thought parts already contained it. Signatures that floe did not make are
   * ignored.
   */
  signature(signature: string): void {
    const signed = decodeThoughtSignature(signature);
    if (signed === null) return;
    this.completionId ??= signed.completionId;
    if (!this.hasUnsignedThought) this.reasoning += signed.text;
    this.hasUnsignedThought = false;
  }

  call({ name, args, id: wireId }: WireCall): void {
    // An empty id counts as missing, because protocol buffers encode a missing string as an empty one.
    const hasWireId = Boolean(wireId);
    const id = wireId || this.ids.idOf(this.index, this.calls.length);
    this.calls.push({ id, name, hasWireId });
    this.toolCalls.push({ id, type: 'function', function: { name, arguments: argumentText(args ?? {}) } });
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
