import { parseJson } from '../../core/parse.ts';

const OPEN_BRACE = 0x7b;
const OPEN_BRACKET = 0x5b;
const COMMA = 0x2c;

/**
 * Brackets and commas of a JSON text, those inside strings as well: never fewer than it has values beside the first, and the
 * same however the text is spaced and its keys are ordered.
 */
export function countMarks(text: string): number {
  let marks = 0;
  for (let i = 0; i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (char === OPEN_BRACE || char === OPEN_BRACKET || char === COMMA) marks++;
  }
  return marks;
}

/**
 * Tells whether texts are JSON, for no more of them together than `marks`. The bounds of a request's body do not hold inside its
 * strings, where a body of the largest size takes half a minute to parse.
 */
export class JsonTexts {
  private marks: number;

  constructor(marks: number) {
    this.marks = marks;
  }

  /** False, too, for a text that is nested too deeply, or that comes when the bound is used up. */
  isJson(text: string): boolean {
    this.marks -= countMarks(text);
    if (this.marks < 0) return false;
    try {
      parseJson(text);
      return true;
    } catch {
      return false;
    }
  }
}
