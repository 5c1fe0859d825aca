import type { Problem, SourceFile } from './source.ts';

/** Largest number of words of a sentence in a comment. */
const MAX_WORDS = 30;

/** A construction that makes readers stop, and what to write instead. */
const CONSTRUCTIONS: readonly { readonly pattern: RegExp; readonly instead: string }[] = [
  { pattern: /\b(of|by|with) which\b/i, instead: 'two sentences, or a clause with its own subject' },
  { pattern: /\bone that\b/i, instead: 'the noun' },
  { pattern: /\bthose (of|that)\b|\bthat of\b(?! course)/i, instead: 'the noun' },
];

const VERBS = 'is|are|was|were|has|have|can|may|must|does|do|will|would';
/** Matches a first sentence whose subject is a pronoun, which has no noun before it. "This" with a noun, as in "this process", is allowed. */
const PRONOUN = new RegExp(
  `^(It|They|He|She) (?:${VERBS}|[a-z]+s)\\b|^(This|These|Those) (?:${VERBS}|throws|returns)\\b`,
);

/** Matches directives for tools, which are no prose. */
const DIRECTIVE = /^\s*(biome-ignore|@ts-|@vitest-|words: quoted$|language=|\/ <)/;

/** A comment as a reader sees it: successive line comments are one. */
export type Prose = {
  /** Numbers of its first and last line, counted from 1. */
  readonly firstLine: number;
  readonly lastLine: number;
  /** The text in one line, without comment marks. Paragraphs, list items and tags such as `@param` begin after `¶`. */
  readonly text: string;
};

/** Returns the comments of a file that are prose. */
export function proseOf(file: SourceFile): Prose[] {
  const groups: { firstLine: number; lastLine: number; text: string; isBlock: boolean }[] = [];
  for (const { type, value, start, end } of file.comments) {
    if (DIRECTIVE.test(value)) continue;
    const firstLine = file.lineAt(start);
    const lastLine = file.lineAt(end);
    const isBlock = type === 'Block';
    const text = value.replaceAll(/^[ \t]*\*+[ \t]?/gm, '').trim();
    const last = groups.at(-1);
    if (!isBlock && last !== undefined && !last.isBlock && last.lastLine === firstLine - 1) {
      last.text = `${last.text}\n${text}`;
      last.lastLine = lastLine;
    } else groups.push({ firstLine, lastLine, text, isBlock });
  }
  return groups.map(({ firstLine, lastLine, text }) => ({
    firstLine,
    lastLine,
    text: text
      .replaceAll(/```[\s\S]*?```/g, '¶')
      .replaceAll(/\n\s*\n|\n\s*(?=[-*•|@]|\d+\. )/g, ' ¶ ')
      .replaceAll(/\s+/g, ' '),
  }));
}

/** Splits prose into sentences. Code in backquotes and links count as one word each. */
function sentencesOf(text: string): string[] {
  return text
    .replaceAll(/`[^`]*`|\{@link [^}]*\}|"[^"]*"|https?:\S+/g, 'X')
    .replaceAll(/\b(e\.g|i\.e|etc|vs|cf|approx)\./g, '$1')
    .split(/(?<=[.!?:;])\s+(?=[A-Z(`X[])|¶/)
    .map((sentence) => sentence.trim())
    .filter((sentence) => sentence !== '');
}

/** Reports sentences in comments that are too long, and constructions that need a second reading. */
export function checkGrammar(file: SourceFile): Problem[] {
  return proseOf(file).flatMap(({ firstLine, text }) => {
    const messages: string[] = [];
    const sentences = sentencesOf(text);
    for (const sentence of sentences) {
      const words = sentence.split(' ').filter((word) => /[a-z0-9]/i.test(word)).length;
      if (words > MAX_WORDS)
        messages.push(`a sentence of ${words} words ("${sentence.slice(0, 40)}…"): at most ${MAX_WORDS}`);
      for (const { pattern, instead } of CONSTRUCTIONS) {
        const [found] = pattern.exec(sentence) ?? [];
        if (found !== undefined) messages.push(`"${found}": write ${instead}`);
      }
    }
    const [pronoun] = PRONOUN.exec(sentences[0] ?? '') ?? [];
    if (pronoun !== undefined) messages.push(`a comment begins with "${pronoun}": name the subject`);
    return messages.map((message) => ({ path: file.path, line: firstLine, message }));
  });
}
