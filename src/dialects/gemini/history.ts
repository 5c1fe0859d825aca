import { FloeError } from '../../core/errors.ts';
import type { ContentPart } from '../../schema/index.ts';
import { type Conversation, contentOf } from '../conversation.ts';
import { CallIds, OpenCalls } from './calls.ts';
import { ModelTurn } from './model-turn.ts';
import type { ForeignContent, ForeignMedia, ForeignPart, ForeignResult, JsonObject } from './schema.ts';

/** What the client is told that it sent. */
export const REQUEST = 'generate content request';

/** A part is one of these. */
type PartKind = Exclude<keyof ForeignPart, 'thought' | 'thoughtSignature'>;

/** Adds `contents` to a conversation; `at` is where they are in the request. Throws `schema_violation`. */
export function addContents(conversation: Conversation, contents: readonly ForeignContent[], at: string): void {
  const reader = new ContentsReader(conversation, contents);
  for (const [index, { role, parts }] of contents.entries()) {
    const path = `${at}.${index}.parts`;
    if (role === 'model') reader.model(parts ?? [], path);
    else reader.user(parts ?? [], path);
  }
  reader.closeTurn();
}

/** Text of an instruction; whatever else it holds is dropped. */
export function instructionText(conversation: Conversation, parts: readonly ForeignPart[], at: string): string {
  const texts: ContentPart[] = [];
  for (const [index, part] of parts.entries()) {
    if (kindOf(part, `${at}.${index}`) === 'text') texts.push({ type: 'text', text: part.text ?? '' });
    else conversation.note('part of the system instruction that is no text dropped');
  }
  const content = contentOf(texts);
  return typeof content === 'string' ? content : '';
}

/** A tool's result whose images may still follow. */
type OpenResult = { readonly callId: string; readonly parts: ContentPart[] };

class ContentsReader {
  private readonly conversation: Conversation;
  private readonly ids: CallIds;
  private turn: ModelTurn | null = null;
  private turns = 0;
  private waiting = new OpenCalls([]);

  constructor(conversation: Conversation, contents: readonly ForeignContent[]) {
    this.conversation = conversation;
    this.ids = new CallIds(contents);
  }

  /** Contents of the model that follow one another are one turn: clients split and join them. */
  model(parts: readonly ForeignPart[], at: string): void {
    this.turn ??= new ModelTurn(this.turns++, this.ids);
    for (const [index, part] of parts.entries()) this.modelPart(this.turn, part, `${at}.${index}`);
  }

  /** Results answer the turn of the model, so they come first; what else there is follows as one user message. */
  user(parts: readonly ForeignPart[], at: string): void {
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
        result = this.resultOf(part.functionResponse as ForeignResult, path);
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
    this.waiting = new OpenCalls(this.turn.calls);
    this.turn = null;
  }

  private modelPart(turn: ModelTurn, part: ForeignPart, at: string): void {
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
        throw wrongField(`${at}.functionResponse`, 'a turn of the model holds no results');
      case 'inlineData':
      case 'fileData':
        this.conversation.note('media outside a user turn dropped');
        break;
      default:
        this.dropped(part, kind);
    }
    if (part.thoughtSignature) turn.signature(part.thoughtSignature);
  }

  private userPart(part: ForeignPart, kind: PartKind | null, at: string): ContentPart | null {
    switch (kind) {
      case 'text':
        if (part.thought !== true) return { type: 'text', text: part.text ?? '' };
        this.conversation.note('thought outside a turn of the model dropped');
        return null;
      case 'functionCall':
        throw wrongField(`${at}.functionCall`, 'only a turn of the model holds calls');
      case 'inlineData':
      case 'fileData':
        return this.imageOf(part);
      default:
        this.dropped(part, kind);
        return null;
    }
  }

  private dropped(part: ForeignPart, kind: PartKind | null): void {
    if (kind !== null) this.conversation.note(`${kind} part dropped`);
    else if (!part.thoughtSignature && part.thought !== true) this.conversation.note('part of an unknown kind dropped');
  }

  private imageOf({ inlineData, fileData }: ForeignMedia): ContentPart | null {
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

  private resultOf(result: ForeignResult, at: string): OpenResult {
    const callId = this.waiting.answer(result.name, result.id || null);
    if (callId === null) {
      throw wrongField(`${at}.functionResponse`, 'it answers no open call of the turn of the model before it');
    }
    const text = this.resultText(result.response ?? null);
    const parts: ContentPart[] = text === '' ? [] : [{ type: 'text', text }];
    for (const media of result.parts ?? []) {
      const image = this.imageOf(media);
      if (image !== null) parts.push(image);
    }
    return { callId, parts };
  }

  /** Google names two fields that say what a result is; any other object is the result itself. */
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

/** Null where the part says nothing that is known here. */
function kindOf(part: ForeignPart, at: string): PartKind | null {
  let found: PartKind | null = null;
  // The schema leaves nothing but its own fields, and those that are missing are not there.
  for (const key of Object.keys(part) as (keyof ForeignPart)[]) {
    if (key === 'thought' || key === 'thoughtSignature' || part[key] === undefined || part[key] === null) continue;
    if (found !== null) throw wrongField(at, `a part is one of ${found} and ${key}, not both`);
    found = key;
  }
  return found;
}

function wrongField(path: string, message: string): FloeError {
  return new FloeError('schema_violation', `${REQUEST}: ${path}: ${message}`, { issues: [{ path, message }] });
}
