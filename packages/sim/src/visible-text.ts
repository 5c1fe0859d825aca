import type { Vocabulary } from './vocabulary.ts';

/**
 * A piece of the text that the client sees. `delimiter` is the token's id when the piece is exactly one sampled delimiter token; otherwise
 * `null`.
 */
export type TextPiece = { readonly text: string; readonly delimiter: number | null };

export type VisibleTextOptions = {
  /** Strings that end the reply when they occur in its text. */
  readonly stop: readonly string[];
  /** Whether the stop string is part of the visible text. */
  readonly includeStop: boolean;
  /** Whether turn delimiters are left out of the visible text. */
  readonly skipSpecial: boolean;
};

/**
 * Converts sampled ids to text incrementally. A character that spans several tokens is released with the last of these tokens. Text that
 * may be the beginning of a stop string is held back, so that released text never has to be retracted.
 */
export class VisibleText {
  private readonly vocabulary: Vocabulary;
  private readonly options: VisibleTextOptions;
  private readonly holdChars: number;
  private readonly decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  private held: TextPiece[] = [];
  private heldText = '';
  private matched: string | null = null;

  constructor(vocabulary: Vocabulary, options: VisibleTextOptions) {
    this.vocabulary = vocabulary;
    this.options = options;
    this.holdChars = Math.max(0, ...options.stop.map((text) => text.length - 1));
  }

  /** The stop string that ended the text; `null` while none has occurred. No token may be pushed after a stop string. */
  get stop(): string | null {
    return this.matched;
  }

  /** Adds one sampled token. */
  push(id: number): void {
    if (!this.vocabulary.isDelimiter(id)) {
      this.append({ text: this.decoder.decode(this.vocabulary.bytes(id), { stream: true }), delimiter: null });
      return;
    }
    this.flushDecoder();
    if (this.options.skipSpecial && this.vocabulary.isHidden(id)) return;
    this.append({ text: this.vocabulary.decode([id]), delimiter: id });
  }

  /** Returns the text that can no longer become part of a stop string and that was not returned before. */
  release(): TextPiece[] {
    if (this.matched !== null) return this.releaseUpTo(this.heldText.length);
    let end = this.heldText.length - this.holdChars;
    if (end > 0 && this.holdChars > 0 && isLowSurrogate(this.heldText.charCodeAt(end))) end--;
    return this.releaseUpTo(end);
  }

  /** Returns the text that was still held back. It is called when the reply has ended. */
  finish(): TextPiece[] {
    if (this.matched === null) this.flushDecoder();
    return this.releaseUpTo(this.heldText.length);
  }

  private flushDecoder(): void {
    this.append({ text: this.decoder.decode(), delimiter: null });
  }

  private append(piece: TextPiece): void {
    if (piece.text === '' || this.matched !== null) return;
    this.held.push(piece);
    this.heldText += piece.text;
    let first = Number.POSITIVE_INFINITY;
    for (const stop of this.options.stop) {
      const index = this.heldText.indexOf(stop);
      if (index >= 0 && index < first) {
        first = index;
        this.matched = stop;
      }
    }
    if (this.matched === null) return;
    const end = this.options.includeStop ? first + this.matched.length : first;
    this.held = this.releaseUpTo(end);
    this.heldText = this.held.map(({ text }) => text).join('');
  }

  /** Releases the first `end` characters of the held text. A delimiter that is only partly released becomes plain text. */
  private releaseUpTo(end: number): TextPiece[] {
    const released: TextPiece[] = [];
    let at = 0;
    let index = 0;
    for (; index < this.held.length; index++) {
      const piece = this.held[index] as TextPiece;
      if (at + piece.text.length > end) break;
      released.push(piece);
      at += piece.text.length;
    }
    const cut = this.held[index];
    const rest = this.held.slice(index + 1);
    if (cut !== undefined) {
      if (end > at && (cut.delimiter === null || this.matched !== null)) {
        released.push({ text: cut.text.slice(0, end - at), delimiter: null });
        rest.unshift({ text: cut.text.slice(end - at), delimiter: null });
        at = end;
      } else rest.unshift(cut);
    }
    this.held = rest;
    this.heldText = this.heldText.slice(at);
    return released;
  }
}

function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
