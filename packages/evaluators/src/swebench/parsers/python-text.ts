/**
 * White space as `str.isspace` and `\s` of Python define it, for a character class. `\s` of JavaScript lacks U+001C to U+001F and U+0085, and
 * has U+FEFF.
 */
const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';

/** JavaScript equivalents of the classes of Python's regular expressions, outside and inside of brackets. */
const CLASSES: Readonly<Record<string, readonly [outside: string, inside: string]>> = {
  '\\s': [`[${SPACE}]`, SPACE],
  '\\S': [`[^${SPACE}]`, ''],
  '\\d': ['\\p{Nd}', '\\p{Nd}'],
  '\\w': ['[\\p{L}\\p{N}_]', '\\p{L}\\p{N}_'],
};

/**
 * Compiles a regular expression in which `\s`, `\S` (outside of brackets), `\d` and `\w` match the same characters as in Python, and `.`
 * matches every character. It may be applied only to single lines, unless the expression itself excludes `\n`.
 */
export function pattern(source: string, flags = ''): RegExp {
  let translated = '';
  let isInside = false;
  for (let at = 0; at < source.length; at++) {
    const char = source.charAt(at);
    if (char !== '\\') {
      if (char === '[' || char === ']') isInside = char === '[';
      translated += char;
      continue;
    }
    at += 1;
    const escaped = char + source.charAt(at);
    translated += CLASSES[escaped]?.[isInside ? 1 : 0] ?? escaped;
  }
  return new RegExp(translated, `su${flags}`);
}

const SPACES = pattern('\\s+', 'g');

export function isSpace(text: string, at: number): boolean {
  const code = text.charCodeAt(at);
  if (code <= 0x20) return code === 0x20 || (code >= 0x09 && code <= 0x0d) || code >= 0x1c;
  if (code < 0x1680) return code === 0x85 || code === 0xa0;
  return (
    code === 0x1680 ||
    (code >= 0x2000 && code <= 0x200a) ||
    code === 0x2028 ||
    code === 0x2029 ||
    code === 0x202f ||
    code === 0x205f ||
    code === 0x3000
  );
}

const DIGIT = /\p{Nd}/u;

export function isDigit(text: string, at: number): boolean {
  const code = text.charCodeAt(at);
  return code < 0x80 ? code >= 0x30 && code <= 0x39 : DIGIT.test(text.charAt(at));
}

/** Returns the number of white-space characters at the start of a text. */
export function indentOf(text: string): number {
  let indent = 0;
  while (indent < text.length && isSpace(text, indent)) indent += 1;
  return indent;
}

export function stripEnd(text: string): string {
  let end = text.length;
  while (end > 0 && isSpace(text, end - 1)) end -= 1;
  return text.slice(0, end);
}

export function strip(text: string): string {
  return stripEnd(text.slice(indentOf(text)));
}

/** Splits a text at white space. With `limit`, only the first words are returned, and the rest of the text is not read. */
export function words(text: string, limit = Number.POSITIVE_INFINITY): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length && found.length < limit; ) {
    while (at < text.length && isSpace(text, at)) at += 1;
    const start = at;
    while (at < text.length && !isSpace(text, at)) at += 1;
    if (at > start) found.push(text.slice(start, at));
  }
  return found;
}

/** Replaces each run of white space by one space, and removes white space at both ends. */
export function withSingleSpaces(text: string): string {
  return strip(text.replaceAll(SPACES, ' '));
}

/** Returns the text before the first separator; the whole text when there is none. */
export function before(text: string, separator: string): string {
  const at = text.indexOf(separator);
  return at < 0 ? text : text.slice(0, at);
}

/** Returns the text after the last separator; the whole text when there is none. */
export function afterLast(text: string, separator: string): string {
  const at = text.lastIndexOf(separator);
  return at < 0 ? text : text.slice(at + separator.length);
}

/** Returns the text before the last separator; the whole text when there is none. */
export function beforeLast(text: string, separator: string): string {
  const at = text.lastIndexOf(separator);
  return at < 0 ? text : text.slice(0, at);
}

/** Returns the last match, at `from` or later, of an expression with the flag `g`; `null` when there is none. */
export function lastMatch(text: string, expression: RegExp, from = 0): RegExpExecArray | null {
  let last: RegExpExecArray | null = null;
  expression.lastIndex = from;
  for (let match = expression.exec(text); match !== null; match = expression.exec(text)) last = match;
  return last;
}

/** Matches the escape sequences of terminals. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with the escape character
const ESCAPE_SEQUENCE = /\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])/g;

export function withoutEscapeSequences(text: string): string {
  return text.replaceAll(ESCAPE_SEQUENCE, '');
}
