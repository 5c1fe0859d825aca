import type { Piece } from './visible-text.ts';
import type { SpecialTokens } from './vocabulary.ts';

export type ParsedCall = { readonly id: string; readonly name: string; readonly argumentsText: string };

/** A part of the assistant message, in the order sampled. Exactly one field is set. */
export type MessageDelta =
  | { readonly reasoning: string }
  | { readonly content: string }
  | { readonly call: ParsedCall & { readonly index: number } };

export type ParserOptions = {
  readonly special: SpecialTokens;
  /** The prompt opened a thinking block. */
  readonly insideThinking: boolean;
  /** Whether tool calls are looked for; without, their text stays in the content. */
  readonly parseCalls: boolean;
  readonly newCallId: () => string;
};

/**
 * Splits a reply into reasoning, content and tool calls by its delimiter tokens, as it comes. Works on ids, so that text
 * which only looks like a delimiter changes nothing. Argument text is handed out as sampled. A call that is no JSON, or
 * not closed, is content. White space alone around calls is no content, as in vLLM.
 */
export class ReplyParser {
  private readonly options: ParserOptions;
  private state: 'content' | 'reasoning' | 'call';
  private callText = '';
  private blank = '';
  private readonly message = { reasoning: null as string | null, content: '', calls: [] as ParsedCall[] };

  constructor(options: ParserOptions) {
    this.options = options;
    this.state = options.insideThinking ? 'reasoning' : 'content';
  }

  push(pieces: readonly Piece[]): MessageDelta[] {
    return pieces.flatMap((piece) => this.take(piece));
  }

  /** What is still held back. */
  finish(): MessageDelta[] {
    if (this.state === 'call') {
      this.state = 'content';
      return this.content(`<tool_call>${this.callText}`);
    }
    if (this.blank === '' || this.message.calls.length > 0) return [];
    this.message.content += this.blank;
    return [{ content: this.blank }];
  }

  /** The whole message; only after {@link finish}. */
  get parsed(): {
    readonly reasoning: string | null;
    readonly content: string | null;
    readonly calls: readonly ParsedCall[];
  } {
    const { reasoning, content, calls } = this.message;
    return { reasoning, content: content === '' && (reasoning !== null || calls.length > 0) ? null : content, calls };
  }

  private take({ text, delimiter }: Piece): MessageDelta[] {
    const { special, parseCalls } = this.options;
    if (this.state === 'call') {
      if (delimiter === special.toolCallClose) return this.closeCall();
      this.callText += text;
      return [];
    }
    if (this.state === 'reasoning') {
      if (delimiter === special.thinkClose) {
        this.state = 'content';
        return [];
      }
      return this.reasoning(text);
    }
    if (delimiter === special.thinkOpen && this.message.reasoning === null && this.message.content === '') {
      this.state = 'reasoning';
      return [];
    }
    if (delimiter === special.toolCallOpen && parseCalls) {
      this.state = 'call';
      this.callText = '';
      return [];
    }
    return this.content(text);
  }

  private reasoning(text: string): MessageDelta[] {
    this.message.reasoning = (this.message.reasoning ?? '') + text;
    return [{ reasoning: text }];
  }

  private content(text: string): MessageDelta[] {
    const known = this.message;
    if (known.content === '' && text.trim() === '') {
      this.blank += text;
      return [];
    }
    // Blanks between two calls were swallowed with the first one.
    const delta = this.blank + text;
    this.blank = '';
    if (known.calls.length > 0 && delta.trim() === '') return [];
    known.content += delta;
    return [{ content: delta }];
  }

  private closeCall(): MessageDelta[] {
    this.state = 'content';
    const call = parseCall(this.callText);
    if (call === null) return this.content(`<tool_call>${this.callText}</tool_call>`);
    this.blank = '';
    const complete = { id: this.options.newCallId(), ...call };
    this.message.calls.push(complete);
    return [{ call: { ...complete, index: this.message.calls.length - 1 } }];
  }
}

/** Name and raw argument text of one call; null when it is no JSON object with both. */
function parseCall(text: string): { readonly name: string; readonly argumentsText: string } | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null || !('name' in value) || !('arguments' in value)) return null;
  const argumentsText = rawField(text, 'arguments');
  return typeof value.name === 'string' && argumentsText !== null ? { name: value.name, argumentsText } : null;
}

/** The text of a top-level field's value in the text of a JSON object that is known to be valid; the last one counts. */
export function rawField(text: string, field: string): string | null {
  let found: string | null = null;
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
        if (key === field) found = text.slice(valueStart, i).trim();
        valueStart = -1;
      }
      if (char !== ',') depth--;
    }
  }
  return found;
}

function stringEnd(text: string, start: number): number {
  let i = start + 1;
  while (i < text.length && text[i] !== '"') i += text[i] === '\\' ? 2 : 1;
  return i;
}
