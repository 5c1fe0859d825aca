/** A sentence of a page, without line breaks. The cells of a table and the parts between semicolons are sentences of their own. */
export type Sentence = {
  readonly text: string;
  /** Line on which the paragraph or the item with the sentence begins, counted from 1. */
  readonly line: number;
  /** Text of the heading above the sentence. */
  readonly heading: string;
  /** Whether the sentence begins its paragraph or item. */
  readonly isFirst: boolean;
  /** Whether the sentence is in a table. */
  readonly isCell: boolean;
};

const END_OF_SENTENCE = /(?<=[.!?;:]) +| *(?<!\\)\| */;
/** Replaces the spaces inside code while a text is divided into sentences, so that code is not divided. */
const CODE_SPACE = '\u00a0';

/** Returns the sentences of a page in their order, without headings, blocks of code and comments. */
export function sentencesOf(markdown: string): Sentence[] {
  const sentences: Sentence[] = [];
  let heading = '';
  let paragraph: { readonly line: number; readonly text: string } = { line: 0, text: '' };
  let fence: string | null = null;
  const endParagraph = (): void => {
    const { line, text } = paragraph;
    const isCell = text.startsWith('|');
    const parts = text
      .replaceAll(/`[^`]*`/g, (code) => code.replaceAll(' ', CODE_SPACE))
      .split(END_OF_SENTENCE)
      .filter((part) => part !== '')
      .map((part) => part.replaceAll(CODE_SPACE, ' '));
    sentences.push(...parts.map((part, index) => ({ text: part, line, heading, isFirst: index === 0, isCell })));
    paragraph = { line: 0, text: '' };
  };
  for (const [index, line] of withoutComments(markdown).split('\n').entries()) {
    const [ticks] = /^\s*(`{3,})/.exec(line) ?? [];
    if (ticks !== undefined || fence !== null) {
      if (fence === null) endParagraph();
      fence = fence === null ? ((ticks ?? null)?.trim() ?? null) : line.trim() === fence ? null : fence;
      continue;
    }
    const text = line.trim();
    const [, title] = /^#+ (.*)$/.exec(text) ?? [];
    if (text === '' || title !== undefined || /^(?:[-*|]|\d+\.)(?: |$)/.test(text)) endParagraph();
    if (title !== undefined) heading = title;
    else if (text !== '') {
      const content = text.replace(/^(?:[-*]|\d+\.) /, '');
      paragraph =
        paragraph.text === ''
          ? { line: index + 1, text: content }
          : { line: paragraph.line, text: `${paragraph.text} ${content}` };
    }
  }
  endParagraph();
  return sentences;
}

/** Removes comments and keeps their line breaks, so that the numbers of lines stay. */
function withoutComments(markdown: string): string {
  return markdown.replaceAll(/<!--.*?-->/gs, (comment) => comment.replaceAll(/[^\n]/g, ''));
}
