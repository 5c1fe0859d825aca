import { describe, expect, it } from 'vitest';
import { checkGrammar, proseOf } from '../../tools/lint/grammar.ts';
import { parseSource } from '../../tools/lint/source.ts';

const found = (text: string): string[] =>
  checkGrammar(parseSource('packages/x/src/a.ts', text)).map(({ message }) => message);
const words = (count: number): string => `A ${'word '.repeat(count - 2)}ends.`;

describe('the grammar of comments', () => {
  it('allows sentences of 30 words, and refuses longer ones', () => {
    expect(found(`/** ${words(30)} ${words(30)} */`)).toEqual([]);
    expect(found(`/** ${words(30)} ${words(31)} */`)).toEqual([expect.stringContaining('a sentence of 31 words')]);
    expect(found(`// ${words(15)}\n// ${words(31)}`)).toEqual([expect.stringContaining('a sentence of 31 words')]);
  });

  it('counts code, a link and a quotation as one word', () => {
    expect(found(`/** ${words(29).slice(0, -1)} \`a b c d\`. */`)).toEqual([]);
    expect(found(`/** ${words(29).slice(0, -1)} {@link One.of}. */`)).toEqual([]);
    expect(found(`/** ${words(29).slice(0, -1)} "one that waits". */`)).toEqual([]);
  });

  it('begins a new sentence at a paragraph, a list item and a tag', () => {
    const part = words(20).slice(0, -1);
    expect(found(`/**\n * ${part}\n *\n * ${part}\n */`)).toEqual([]);
    expect(found(`/**\n * ${part}\n * - ${part}\n */`)).toEqual([]);
    expect(found(`/**\n * ${part}\n * @param a ${part}\n */`)).toEqual([]);
  });

  it.each(['of which', 'by which', 'with which', 'one that', 'those of', 'those that', 'that of'])(
    'refuses "%s"',
    (construction) => {
      expect(found(`// The value ${construction} the engine reads.`)).toEqual([
        expect.stringContaining(`"${construction}"`),
      ]);
      expect(found(`// The value \`${construction}\`.`)).toEqual([]);
    },
  );

  it('refuses a pronoun as the first subject, and allows it in later sentences', () => {
    expect(found('/** It returns the value. */')).toEqual([expect.stringContaining('begins with "It returns"')]);
    expect(found('/** The value. It is never negative. */')).toEqual([]);
    expect(found('/** This process ends. */')).toEqual([]);
  });

  it('does not read directives', () => {
    expect(found('// biome-ignore lint/x: one that is needed')).toEqual([]);
    expect(proseOf(parseSource('a.ts', '// words: quoted\nconst a = 1;'))).toEqual([]);
  });
});
