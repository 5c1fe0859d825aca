import { lowerCaseWords } from '@floe-rl/core';
import { ToolError } from './tool.ts';

/** Maximum number of characters of all notes. */
const MAX_CHARS = 1024 * 1024;
/** Constants of BM25: how fast repeated words saturate, and how much long notes count less. */
const SATURATION = 1.2;
const LENGTH_WEIGHT = 0.75;

export type Note = { readonly name: string; readonly text: string };

/** Notes of one agent, which it can search. */
export class Notes {
  private readonly byName = new Map<string, string>();
  private unnamed = 0;

  get size(): number {
    return this.byName.size;
  }

  /** Keeps a note, in the place of an earlier one of the same name, and returns its name. Throws a {@link ToolError} when it does not fit. */
  keep(text: string, name: string | null): string {
    const key = name ?? this.freeName();
    const before = this.byName.get(key)?.length ?? 0;
    const chars = [...this.byName.values()].reduce((sum, note) => sum + note.length, text.length - before);
    if (chars > MAX_CHARS) throw new ToolError('too_large', `all notes together have at most ${MAX_CHARS} characters`);
    this.byName.set(key, text);
    return key;
  }

  /** Returns the notes that have words of the query, the best first by BM25. */
  search(query: string, limit: number): Note[] {
    const notes = [...this.byName].map(([name, text]) => ({ name, text, words: lowerCaseWords(`${name} ${text}`) }));
    const averageLength = notes.reduce((sum, { words }) => sum + words.length, 0) / Math.max(1, notes.length);
    const terms = [...new Set(lowerCaseWords(query))].map((word) => {
      const holders = notes.filter(({ words }) => words.includes(word)).length;
      return { word, weight: Math.log(1 + (notes.length - holders + 0.5) / (holders + 0.5)) };
    });
    return notes
      .map(({ name, text, words }) => {
        const norm = SATURATION * (1 - LENGTH_WEIGHT + (LENGTH_WEIGHT * words.length) / averageLength);
        const score = terms.reduce((sum, { word, weight }) => {
          const count = words.filter((one) => one === word).length;
          return sum + (weight * count * (SATURATION + 1)) / (count + norm);
        }, 0);
        return { name, text, score };
      })
      .filter(({ score }) => score > 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, limit)
      .map(({ name, text }) => ({ name, text }));
  }

  private freeName(): string {
    do this.unnamed++;
    while (this.byName.has(`note-${this.unnamed}`));
    return `note-${this.unnamed}`;
  }
}
