const WHITE_SPACE = /\s/;

/** Looks for the end of one JSON value in text that comes in pieces. */
export class ValueEnd {
  private depth = 0;
  private inString = false;
  private escaped = false;

  /** Where in this piece the value may be whole; null: not yet. What is no object or list may be so from its first character. */
  find(piece: string): number | null {
    for (let i = 0; i < piece.length; i++) {
      const char = piece[i] as string;
      if (this.inString) this.takeInString(char);
      else if (this.ends(char)) return i;
    }
    return null;
  }

  private takeInString(char: string): void {
    if (this.escaped) this.escaped = false;
    else if (char === '\\') this.escaped = true;
    else if (char === '"') this.inString = false;
  }

  private ends(char: string): boolean {
    switch (char) {
      case '{':
      case '[':
        this.depth++;
        return false;
      case '}':
      case ']':
        return --this.depth <= 0;
      default:
        if (this.depth === 0) return !WHITE_SPACE.test(char);
        this.inString = char === '"';
        return false;
    }
  }
}
