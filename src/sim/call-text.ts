/**
 * One tool call of a stream, read while its text comes. Finds name and arguments by their look, as vLLM's hermes parser,
 * since the text need never become JSON.
 */
export class StreamedCall {
  text = '';
  private closed = false;
  private found: string | null = null;
  /** Where the arguments begin; -1 until that is known. */
  private start = -1;
  private handedOut = 0;
  private readonly value = new BracketScan();

  take(text: string): void {
    this.text += text;
  }

  /** The closing delimiter came. */
  close(): void {
    this.closed = true;
  }

  /** The tool's name; null until it is complete. */
  name(): string | null {
    this.found ??= /"name"\s*:\s*"([^"]+)"/.exec(this.text)?.[1] ?? null;
    return this.found;
  }

  /** Argument text that came since the last time; an object or array ends with its own bracket. */
  freshArguments(): string {
    if (this.start < 0) {
      const match = /"arguments"\s*:\s*(?=\S)/.exec(this.text);
      if (match === null) return '';
      this.start = match.index + match[0].length;
    }
    const from = this.start + this.handedOut;
    const end = this.argumentsEnd();
    if (end <= from) return '';
    this.handedOut = end - this.start;
    return this.text.slice(from, end);
  }

  private argumentsEnd(): number {
    const { text, start } = this;
    // White space at the end may stand before the closing delimiter; it is shown when more follows.
    const trimmed = text.trimEnd().length;
    if (text[start] === '{' || text[start] === '[') return this.value.end(text, start) ?? trimmed;
    if (!this.closed && !isJson(text)) return trimmed;
    const whole = text.slice(start, trimmed);
    return start + (whole.endsWith('}') ? whole.slice(0, -1).trimEnd() : whole).length;
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Finds the bracket that ends a JSON value in a growing text, looking at each character once. */
class BracketScan {
  private at = -1;
  private depth = 0;
  private inString = false;
  private escaped = false;
  private ended: number | null = null;

  /** Index behind the closing bracket of the value at `start`; null while it is open. Always to be called for the same value. */
  end(text: string, start: number): number | null {
    const open = text[start];
    const close = open === '{' ? '}' : ']';
    this.at = Math.max(this.at, start);
    for (; this.ended === null && this.at < text.length; this.at++) {
      const char = text[this.at];
      if (this.inString) {
        if (this.escaped) this.escaped = false;
        else if (char === '\\') this.escaped = true;
        else if (char === '"') this.inString = false;
      } else if (char === '"') this.inString = true;
      else if (char === open) this.depth++;
      else if (char === close && --this.depth === 0) this.ended = this.at + 1;
    }
    return this.ended;
  }
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
