import type { TextPiece } from './visible-text.ts';
import type { SpecialTokens } from './vocabulary.ts';

/** A complete tool call. `argumentsText` is the JSON text of its arguments as it was sampled. */
export type ParsedCall = { readonly id: string; readonly name: string; readonly argumentsText: string };

/** A change to one tool call in a stream. The first change of a call has its name; later ones add parts of its argument text. */
export type CallDelta =
  | { readonly index: number; readonly id: string; readonly name: string }
  | { readonly index: number; readonly argumentsText: string };

/**
 * The part of a message that a stream shows the client for newly sampled pieces of text. It has no fields when the parser shows nothing for
 * these pieces yet.
 */
export type MessageDelta = {
  readonly reasoning?: string;
  readonly content?: string;
  readonly calls?: readonly CallDelta[];
};

/** The message of a complete reply. `reasoning` and `content` are `null` when the reply has none. */
export type ParsedMessage = {
  readonly reasoning: string | null;
  readonly content: string | null;
  readonly calls: readonly ParsedCall[];
};

export type ParserOptions = {
  readonly special: SpecialTokens;
  /** Whether the prompt opened a thinking block, so that the reply begins inside it. */
  readonly insideThinking: boolean;
  /** Whether tool calls are parsed. The text of calls that are not parsed stays in the content. */
  readonly parseCalls: boolean;
  /** Returns a new id for the call with this index in the reply. */
  readonly newCallId: (index: number) => string;
};

/**
 * Splits a reply into reasoning, content and tool calls during sampling. It recognises delimiters by their token ids, so that text which
 * only resembles a delimiter has no effect. Argument text is returned as sampled. As in vLLM's hermes parser, complete replies and streams
 * treat tool calls differently:
 * - {@link parsed} treats the text as a complete reply. When one call is not valid JSON, everything is content. The last call may lack its
 *   closing delimiter. Text after the first call is dropped.
 * - {@link push} serves a stream. It shows a call as soon as the call's name is complete, and never retracts shown text. For a reply that
 *   was cut inside a call, the stream therefore shows the beginning of that call, whereas the complete reply has the same text as content.
 */
export class ReplyParser {
  private readonly options: ParserOptions;
  private state: 'content' | 'reasoning' | 'call';
  private reasoning: string | null = null;
  /** The reply's text outside reasoning, including the delimiters of tool calls. */
  private body = '';
  /** Index in `body` at which the first tool call begins; -1 when the text has no call. */
  private callsAt = -1;
  private readonly calls: StreamedCall[] = [];
  private readonly ids: string[] = [];
  /** Number of tool calls whose name has been shown in the stream. */
  private named = 0;

  constructor(options: ParserOptions) {
    this.options = options;
    this.state = options.insideThinking ? 'reasoning' : 'content';
  }

  /** Adds pieces of the reply's text. Returns the delta of the message that a streamed reply sends for these pieces. */
  push(pieces: readonly TextPiece[]): MessageDelta {
    let reasoning = '';
    let content = '';
    for (const piece of pieces) {
      const field = this.add(piece);
      if (field === 'reasoning') reasoning += piece.text;
      else if (field === 'content') content += piece.text;
    }
    const calls = this.newCallDeltas();
    return {
      ...(reasoning === '' ? {} : { reasoning }),
      ...(content === '' ? {} : { content }),
      ...(calls.length === 0 ? {} : { calls }),
    };
  }

  /** Whether a tool call has been shown in the stream. */
  get hasShownCalls(): boolean {
    return this.named > 0;
  }

  /** Parses the text so far as a complete reply. When only white space precedes the first tool call, the reply has no content. */
  get parsed(): ParsedMessage {
    const { reasoning, body } = this;
    const parsedCalls = this.callsAt < 0 ? null : this.calls.map((call) => parseCall(call.text));
    if (parsedCalls?.every((call) => call !== null)) {
      const before = body.slice(0, this.callsAt);
      const calls = parsedCalls.map((call, index) => ({ id: this.idOf(index), ...call }));
      return { reasoning, content: before.trim() === '' ? null : before, calls };
    }
    return { reasoning, content: body === '' && reasoning !== null ? null : body, calls: [] };
  }

  /** Adds one piece of text. Returns the field in which a stream shows it; `null` when the piece is a delimiter or part of a tool call. */
  private add({ text, delimiter }: TextPiece): 'reasoning' | 'content' | null {
    const { special, parseCalls } = this.options;
    if (this.state === 'reasoning') {
      if (delimiter === special.thinkClose) {
        this.state = 'content';
        return null;
      }
      this.reasoning = (this.reasoning ?? '') + text;
      return 'reasoning';
    }
    if (this.state === 'content' && delimiter === special.thinkOpen && this.reasoning === null && this.body === '') {
      this.state = 'reasoning';
      return null;
    }
    const start = this.body.length;
    this.body += text;
    if (this.state === 'call') {
      const call = this.calls.at(-1);
      if (delimiter !== special.toolCallClose) call?.append(text);
      else {
        call?.close();
        this.state = 'content';
      }
      return null;
    }
    if (delimiter === special.toolCallOpen && parseCalls) {
      this.state = 'call';
      this.calls.push(new StreamedCall());
      if (this.callsAt < 0) this.callsAt = start;
      return null;
    }
    return this.callsAt < 0 ? 'content' : null;
  }

  /**
   * Returns the changes to the tool calls since the previous invocation. Changes to a call are returned only when the names of all earlier
   * calls are complete.
   */
  private newCallDeltas(): CallDelta[] {
    const deltas: CallDelta[] = [];
    for (let index = Math.max(0, this.named - 1); index < this.calls.length; index++) {
      const call = this.calls[index];
      if (index >= this.named) {
        const name = call?.name();
        if (name === undefined || name === null) break;
        this.named++;
        deltas.push({ index, id: this.idOf(index), name });
      }
      const argumentsText = call?.newArguments() ?? '';
      if (argumentsText !== '') deltas.push({ index, argumentsText });
    }
    return deltas;
  }

  private idOf(index: number): string {
    const id = this.ids[index] ?? this.options.newCallId(index);
    this.ids[index] = id;
    return id;
  }
}

/**
 * Returns the name and the unparsed argument text of one call; `null` when `text` is not a JSON object with the fields `name` and
 * `arguments`.
 */
function parseCall(text: string): { readonly name: string; readonly argumentsText: string } | null {
  const value = parseJsonText(text);
  if (typeof value !== 'object' || value === null || !('name' in value) || !('arguments' in value)) return null;
  const argumentsText = rawField(text, 'arguments');
  return typeof value.name === 'string' && argumentsText !== null ? { name: value.name, argumentsText } : null;
}

/**
 * One tool call of a streamed reply. Its name and arguments are found with regular expressions, as in vLLM's hermes parser, because the
 * text may never become valid JSON.
 */
class StreamedCall {
  text = '';
  private closed = false;
  private completeName: string | null = null;
  /** Index in `text` at which the arguments begin; -1 while they have not begun. */
  private start = -1;
  /** Number of characters of argument text that `newArguments` has returned. */
  private returnedLength = 0;
  private readonly value = new BracketScan();

  append(text: string): void {
    this.text += text;
  }

  /** Marks the call as complete, because its closing delimiter was sampled. */
  close(): void {
    this.closed = true;
  }

  /** Returns the tool's name; `null` while the name is incomplete. */
  name(): string | null {
    this.completeName ??= /"name"\s*:\s*"([^"]+)"/.exec(this.text)?.[1] ?? null;
    return this.completeName;
  }

  /**
   * Returns the argument text that no earlier invocation returned. Arguments that are an object or array end with its closing bracket; text
   * after that bracket is ignored.
   */
  newArguments(): string {
    if (this.start < 0) {
      const match = /"arguments"\s*:\s*(?=\S)/.exec(this.text);
      if (match === null) return '';
      this.start = match.index + match[0].length;
    }
    const from = this.start + this.returnedLength;
    const end = this.argumentsEnd();
    if (end <= from) return '';
    this.returnedLength = end - this.start;
    return this.text.slice(from, end);
  }

  private argumentsEnd(): number {
    const { text, start } = this;
    // White space at the end of the text is held back, because the delimiter that closes the call may follow it. It is returned only when
    // more text follows.
    const trimmed = text.trimEnd().length;
    if (text[start] === '{' || text[start] === '[') return this.value.end(text, start) ?? trimmed;
    if (!this.closed && parseJsonText(text) === undefined) return trimmed;
    const whole = text.slice(start, trimmed);
    return start + (whole.endsWith('}') ? whole.slice(0, -1).trimEnd() : whole).length;
  }
}

/** Finds the bracket that closes a JSON value in a growing text. Each character is read once. */
class BracketScan {
  private at = -1;
  private depth = 0;
  private inString = false;
  private escaped = false;
  private closedAt: number | null = null;

  /**
   * Returns the index after the closing bracket of the value at `start`; `null` while the value is open. Every invocation must pass the
   * same `start`.
   */
  end(text: string, start: number): number | null {
    const open = text[start];
    const close = open === '{' ? '}' : ']';
    this.at = Math.max(this.at, start);
    for (; this.closedAt === null && this.at < text.length; this.at++) {
      const char = text[this.at];
      if (this.inString) {
        if (this.escaped) this.escaped = false;
        else if (char === '\\') this.escaped = true;
        else if (char === '"') this.inString = false;
      } else if (char === '"') this.inString = true;
      else if (char === open) this.depth++;
      else if (char === close && --this.depth === 0) this.closedAt = this.at + 1;
    }
    return this.closedAt;
  }
}

/**
 * Returns the source text of a top-level field's value in `text`, which must be a valid JSON object. When the field occurs more than once,
 * the last value is returned; `null` when the field does not occur.
 */
export function rawField(text: string, field: string): string | null {
  let value: string | null = null;
  let depth = 0;
  let key: string | null = null;
  let valueStart = -1;
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (char === '"') {
      const end = stringEnd(text, i);
      if (depth === 1 && valueStart < 0) key = JSON.parse(text.slice(i, end + 1));
      i = end;
    } else if (char === '{' || char === '[') depth++;
    else if (char === ':' && depth === 1) valueStart = i + 1;
    else if (char === '}' || char === ']' || char === ',') {
      if (depth === 1 && valueStart >= 0) {
        if (key === field) value = text.slice(valueStart, i).trim();
        valueStart = -1;
      }
      if (char !== ',') depth--;
    }
  }
  return value;
}

/** Returns the index of the quote that closes the string at `start`. */
function stringEnd(text: string, start: number): number {
  let i = start + 1;
  while (i < text.length && text[i] !== '"') i += text[i] === '\\' ? 2 : 1;
  return i;
}

/** Returns the parsed value; `undefined` when `text` is not valid JSON. */
export function parseJsonText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
