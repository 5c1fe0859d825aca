import { rawField, StreamedCall } from './call-text.ts';
import type { Piece } from './visible-text.ts';
import type { SpecialTokens } from './vocabulary.ts';

export type ParsedCall = { readonly id: string; readonly name: string; readonly argumentsText: string };

/** News of one tool call: its name first, then its argument text piece by piece. */
export type CallDelta =
  | { readonly index: number; readonly id: string; readonly name: string }
  | { readonly index: number; readonly argumentsText: string };

/** What a stream shows of some pieces. Without any field the parser has swallowed them. */
export type MessageDelta = {
  readonly reasoning?: string;
  readonly content?: string;
  readonly calls?: readonly CallDelta[];
};

export type ParsedMessage = {
  readonly reasoning: string | null;
  readonly content: string | null;
  readonly calls: readonly ParsedCall[];
};

export type ParserOptions = {
  readonly special: SpecialTokens;
  /** The prompt opened a thinking block. */
  readonly insideThinking: boolean;
  /** Whether tool calls are looked for; without, their text stays in the content. */
  readonly parseCalls: boolean;
  /** A new id for the call at `index` of the reply. */
  readonly newCallId: (index: number) => string;
};

/**
 * Splits a reply into reasoning, content and tool calls by its delimiter tokens, as it comes. Works on ids, so that text
 * which only looks like a delimiter changes nothing. Argument text is handed out as sampled.
 *
 * Calls are read in two ways, as vLLM's hermes parser does. {@link parsed} looks at the whole reply: one call that is no
 * JSON, and all of it is content; a last call may lack its closing delimiter; text after the first call is dropped.
 * {@link push} cannot know the end: it shows a call as soon as its name is there, and never takes anything back. So a
 * stream that was cut within a call holds the beginning of that call, where the whole reply has it as content.
 */
export class ReplyParser {
  private readonly options: ParserOptions;
  private state: 'content' | 'reasoning' | 'call';
  private reasoning: string | null = null;
  /** Everything that is no reasoning, delimiters included. */
  private body = '';
  /** Where the first call begins in `body`; -1: there is none. */
  private callsAt = -1;
  private readonly calls: StreamedCall[] = [];
  private readonly ids: string[] = [];
  /** Calls that the stream has named. */
  private named = 0;

  constructor(options: ParserOptions) {
    this.options = options;
    this.state = options.insideThinking ? 'reasoning' : 'content';
  }

  push(pieces: readonly Piece[]): MessageDelta {
    let reasoning = '';
    let content = '';
    const calls: CallDelta[] = [];
    for (const piece of pieces) {
      const shown = this.take(piece);
      if (shown === 'reasoning') reasoning += piece.text;
      else if (shown === 'content') content += piece.text;
    }
    this.newsOfCalls(calls);
    return {
      ...(reasoning === '' ? {} : { reasoning }),
      ...(content === '' ? {} : { content }),
      ...(calls.length === 0 ? {} : { calls }),
    };
  }

  /** Whether the stream has shown a call. */
  get showedCalls(): boolean {
    return this.named > 0;
  }

  /** The whole message of what has come so far. White space alone around calls is no content. */
  get parsed(): ParsedMessage {
    const { reasoning, body } = this;
    const read = this.callsAt < 0 ? null : this.calls.map((call) => parseCall(call.text));
    if (read?.every((call) => call !== null)) {
      const before = body.slice(0, this.callsAt);
      const calls = read.map((call, index) => ({ id: this.idOf(index), ...call }));
      return { reasoning, content: before.trim() === '' ? null : before, calls };
    }
    return { reasoning, content: body === '' && reasoning !== null ? null : body, calls: [] };
  }

  /** Takes one piece in; says where a stream shows its text. */
  private take({ text, delimiter }: Piece): 'reasoning' | 'content' | null {
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
      if (delimiter !== special.toolCallClose) call?.take(text);
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

  /** A call whose name has not come holds up those after it. */
  private newsOfCalls(news: CallDelta[]): void {
    for (let index = Math.max(0, this.named - 1); index < this.calls.length; index++) {
      const call = this.calls[index];
      if (index >= this.named) {
        const name = call?.name();
        if (name === undefined || name === null) return;
        this.named++;
        news.push({ index, id: this.idOf(index), name });
      }
      const argumentsText = call?.freshArguments() ?? '';
      if (argumentsText !== '') news.push({ index, argumentsText });
    }
  }

  private idOf(index: number): string {
    const id = this.ids[index] ?? this.options.newCallId(index);
    this.ids[index] = id;
    return id;
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
