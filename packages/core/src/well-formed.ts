/**
 * Text without lone surrogates. A lone surrogate is half of a pair of UTF-16 code units, as of an emoji that was cut in the middle. It is no
 * valid Unicode, so tokenizers and most programs in other languages refuse the whole text. Each one is replaced by U+FFFD, and all functions
 * here keep the length of a text.
 */

/** Matches the escape of a surrogate in JSON, whether it is part of a pair or not. */
const SURROGATE_ESCAPE = /\\u[dD][89a-fA-F]/;

/** Whether JSON in UTF-8 may have the escape of a surrogate. Without one, its parsed strings are valid Unicode. */
export function mayEscapeSurrogates(json: Buffer): boolean {
  return json.includes('\\ud') || json.includes('\\uD');
}

/**
 * Returns a JSON value with valid Unicode in all its strings and keys. Parts that are valid are shared with the argument, and a value without
 * lone surrogates is returned itself.
 */
export function wellFormed<T>(value: T): T {
  return repaired(value) as T;
}

function repaired(value: unknown): unknown {
  if (typeof value === 'string') return value.toWellFormed();
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const items = value.map(repaired);
    return items.some((item, index) => item !== value[index]) ? items : value;
  }
  const entries = Object.entries(value);
  const sound = entries.map(([key, member]) => [key.toWellFormed(), repaired(member)] as const);
  const isSame = sound.every(([key, member], index) => key === entries[index]?.[0] && member === entries[index]?.[1]);
  return isSame ? value : Object.fromEntries(sound);
}

/** Encodes a value as JSON text with valid Unicode, also in the strings that the text escapes. */
export function wellFormedJson(value: unknown): string {
  const json = JSON.stringify(value);
  return SURROGATE_ESCAPE.test(json) ? JSON.stringify(wellFormed(value)) : json;
}

/**
 * Matches one of the following, from the start of a character or escape on:
 * - `cut`: the beginning of an escape, or of a pair of escapes, that the end of the text cuts and that may stand for a surrogate;
 * - the two escapes of a pair;
 * - `lone`: the escape of a lone surrogate;
 * - any other escape.
 */
const ESCAPES =
  /(?<cut>\\(?:u(?:[dD](?:[89abAB](?:[0-9a-fA-F](?:[0-9a-fA-F](?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?)?|[c-fC-F][0-9a-fA-F]?)?)?)?$)|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\./gs;

const REPLACEMENT_ESCAPE = '\\ufffd';

/**
 * Returns JSON text, such as the arguments of a tool call, with U+FFFD in place of lone surrogates and of their escapes. The text need not be
 * valid JSON; nothing else of it changes. An escaped surrogate and an unescaped surrogate do not form a pair.
 */
export function wellFormedJsonText(json: string): string {
  const text = json.toWellFormed();
  if (!SURROGATE_ESCAPE.test(text)) return text;
  return text.replace(ESCAPES, (...match) => {
    const [found, groups] = [match[0] as string, match.at(-1) as Record<string, string | undefined>];
    // A cut escape at the end may begin with the whole escape of a lone surrogate, before an escape that is cut.
    if (groups.cut !== undefined) return found.replace(LONE_AT_START, REPLACEMENT_ESCAPE);
    return groups.lone === undefined ? found : REPLACEMENT_ESCAPE;
  });
}

const LONE_AT_START = /^\\u[dD][89a-fA-F][0-9a-fA-F]{2}/;

type MessageWithCalls = {
  readonly tool_calls?: readonly { readonly function: { readonly arguments: string } }[] | undefined;
};

/** Returns an assistant message with {@link wellFormedJsonText} as the arguments of its calls; the message itself when none changes. */
export function wellFormedCalls<T extends MessageWithCalls>(message: T): T {
  const { tool_calls: calls } = message;
  if (calls === undefined) return message;
  const sound = calls.map((call) => {
    const json = wellFormedJsonText(call.function.arguments);
    return json === call.function.arguments ? call : { ...call, function: { ...call.function, arguments: json } };
  });
  return sound.every((call, index) => call === calls[index]) ? message : { ...message, tool_calls: sound };
}

/** Makes text that arrives in pieces well-formed. A piece may end inside a character; its rest is then returned with the next piece. */
export class WellFormedPieces {
  private readonly isJson: boolean;
  private rest = '';

  /** `isJson`: whether the pieces are JSON text, in which escapes of lone surrogates are replaced, too. */
  constructor(isJson: boolean) {
    this.isJson = isJson;
  }

  /** Returns the next piece. An incomplete character at the end of the last piece is never returned. */
  next(piece: string): string {
    const text = this.rest === '' ? piece : this.rest + piece;
    const end = this.endOf(text);
    this.rest = end === text.length ? '' : text.slice(end);
    const whole = end === text.length ? text : text.slice(0, end);
    return this.isJson ? wellFormedJsonText(whole) : whole.toWellFormed();
  }

  /** Returns the position before a character that may continue in the next piece. */
  private endOf(text: string): number {
    if (this.isJson && text.includes('\\')) {
      for (const { index, groups } of text.matchAll(ESCAPES)) if (groups?.cut !== undefined) return index;
    }
    return isHighSurrogate(text.charCodeAt(text.length - 1)) ? text.length - 1 : text.length;
  }
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff;
}
