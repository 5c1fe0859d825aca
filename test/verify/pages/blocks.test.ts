import { describe, expect, it } from 'vitest';
import { blocksOf } from '../../../verify/pages/blocks.ts';

const fenced = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\`\n`;

describe('the blocks of a page', () => {
  it('have their language, text and line, also in a list', () => {
    const blocks = blocksOf('a.md', `# A\n\n${fenced('sh', 'one\n\ntwo')}\n- item\n\n  \`\`\`json\n  {}\n  \`\`\`\n`);
    expect(blocks).toMatchObject([
      { page: 'a.md', line: 3, language: 'sh', text: 'one\n\ntwo\n', notRun: null, before: '', file: null },
      { line: 11, language: 'json', text: '{}\n' },
    ]);
  });

  it('take their marks from the comments before them, and no block after takes them', () => {
    const marks = '<!-- not run: needs a GPU -->\n<!-- before: cd a\nls -->\n<!-- file: task.json -->\n';
    const [marked, next] = blocksOf('a.md', `${marks}${fenced('sh', 'one')}\n${fenced('sh', 'two')}`);
    expect(marked).toMatchObject({ notRun: 'needs a GPU', before: 'cd a\nls', file: 'task.json' });
    expect(next).toMatchObject({ notRun: null, before: '', file: null });
  });

  it('are files when their first line names one', () => {
    const [yaml, js, prose] = blocksOf(
      'a.md',
      fenced('yaml', '# floe.yaml, for --config\na: 1') +
        fenced('js', '// hooks/length.mjs') +
        fenced('sh', '# on the host'),
    );
    expect([yaml?.file, js?.file, prose?.file]).toEqual(['floe.yaml', 'hooks/length.mjs', null]);
  });

  it('of commands have the reason of their page, and code is still checked', () => {
    const page = `<!-- not run on this page: another program runs it -->\n\n${fenced('sh', 'one')}${fenced('python', 'two')}`;
    expect(blocksOf('a.md', page).map(({ notRun }) => notRun)).toEqual(['another program runs it', null]);
  });

  it.each([
    ['a mark without a reason', '<!-- not run: -->\n```sh\none\n```\n', 'has no value'],
    ['a mark before text', '<!-- not run: why -->\n\nText\n\n```sh\none\n```\n', 'is before no block of code'],
    ['a mark at the end of the page', 'Text\n\n<!-- before: ls -->\n', 'is before no block of code'],
    ['a block that does not end', '```sh\none\n', 'does not end'],
  ])('are refused for %s', (_, page, problem) => {
    expect(() => blocksOf('a.md', page)).toThrow(problem);
  });
});
