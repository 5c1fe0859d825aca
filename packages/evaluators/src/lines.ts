import { KIB } from '@floe-rl/core';

/** Number of characters that are read before other work on the event loop runs. Reading this many characters takes a few milliseconds. */
const CHARS_PER_TURN = 64 * KIB;
/** Maximum length of a line in characters. The rest of a longer line is ignored; it can only contain the reason why a test failed. */
const MAX_LINE_CHARS = 64 * KIB;
const LINE_BREAK = /\r\n|\r|\n/;

/**
 * Splits a text into lines of at most {@link MAX_LINE_CHARS} characters. The text is read in parts of {@link CHARS_PER_TURN} characters. For
 * each part, yields the lines that end in it, so that the caller can let other work run between two parts. An empty line at the end of the
 * text is left out.
 */
export function* linesOf(text: string): Generator<string[]> {
  /** The start of a line that continues in the next part. */
  let begun = '';
  for (const part of partsOf(text)) {
    const lines = part.split(LINE_BREAK);
    lines[0] = (begun + lines[0]).slice(0, MAX_LINE_CHARS);
    begun = lines.pop() ?? '';
    yield lines;
  }
  if (begun !== '') yield [begun];
}

/**
 * Splits a text into parts of {@link CHARS_PER_TURN} characters. A part has one more character when it would otherwise end between `\r` and
 * `\n`.
 */
export function* partsOf(text: string): Generator<string> {
  for (let start = 0; start < text.length; ) {
    let end = start + CHARS_PER_TURN;
    if (text[end - 1] === '\r' && text[end] === '\n') end += 1;
    yield text.slice(start, end);
    start = end;
  }
}
