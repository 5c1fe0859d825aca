import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { differenceOf, readPage } from '../../../verify/trainer-pages/page.ts';

const PAGES = join(repositoryRoot(), 'docs', 'trainers');
const block = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\`\n`;
const STEP = [block('sh', 'python train.py'), block('text', 'first step: gradient norm 0.27')].join('\n');

describe('readPage', () => {
  it('returns the blocks of the first steps in their order, and no block of other sections', () => {
    const page = readPage(
      [
        '# Trainer',
        block('sh', 'echo before'),
        '## The first step, without a GPU',
        'In an empty folder:',
        block('sh', '# a comment\npip install x'),
        block('python', '# train.py\nprint(1)'),
        STEP,
        '## With your model',
        block('sh', 'echo after'),
        '## The first step of the other trainer',
        block('yaml', '# loops/agent.yaml\na: 1'),
        STEP,
      ].join('\n\n'),
    );
    expect(page.noStep).toBeNull();
    expect(page.blocks).toEqual([
      { kind: 'commands', text: '# a comment\npip install x\n' },
      { kind: 'file', name: 'train.py', text: '# train.py\nprint(1)\n' },
      { kind: 'commands', text: 'python train.py\n' },
      { kind: 'printed', line: 'first step: gradient norm 0.27' },
      { kind: 'file', name: 'loops/agent.yaml', text: '# loops/agent.yaml\na: 1\n' },
      { kind: 'commands', text: 'python train.py\n' },
      { kind: 'printed', line: 'first step: gradient norm 0.27' },
    ]);
  });

  it('takes the first sentence of "The first samples" as the reason for which there is no step', () => {
    const text = `## The first samples\n\nIts packages are on no\nregistry. Here are samples.\n\n${STEP}`;
    expect(readPage(text).noStep).toBe('Its packages are on no registry.');
  });

  it('does not take a comment in a block for a title', () => {
    const commands = block('sh', '## The first step\necho 1');
    expect(readPage(`## The first step\n\n${commands}\n${STEP}`).blocks).toHaveLength(3);
  });

  it.each([
    ['no section of that name', `## Usage\n\n${STEP}`],
    ['no commands', `## The first step\n\n${block('text', 'first step')}`],
    ['no quoted line after its last commands', `## The first step\n\n${STEP}\n${block('sh', 'echo 1')}`],
  ])('throws for a page with %s', (_, text) => {
    expect(() => readPage(text)).toThrow('the page needs a section');
  });
});

describe('differenceOf', () => {
  const quoted = 'first step: 16 samples, gradient norm 0.2659 (max 1.0e-03)';

  it('permits other numbers', () => {
    expect(differenceOf('first step: 8 samples, gradient norm 12 (max 2e+01)\n', quoted)).toBeNull();
  });

  it.each([
    ['another text', 'first step: 8 rows, gradient norm 12 (max 2e+01)'],
    ['a number that is not one', 'first step: 16 samples, gradient norm nan (max 1.0e-03)'],
    ['text after the line', `${quoted} and more`],
    ['nothing', ''],
  ])('reports %s', (_, printed) => {
    expect(differenceOf(printed, quoted)).toContain('it printed');
  });

  it.each(['0', '0.0000', '0.0e-03'])('reports %s as the last number, with which no weight has changed', (zero) => {
    expect(differenceOf(quoted.replace('1.0e-03', zero), quoted)).toContain('the last number');
  });

  it('reads the signs of quoted texts as they are', () => {
    expect(differenceOf('a+b (c) 1', 'a+b (c) 2')).toBeNull();
    expect(differenceOf('aab (c) 1', 'a+b (c) 2')).toContain('it printed');
  });
});

describe('the pages of docs/trainers', () => {
  const pages = readdirSync(PAGES).filter((file) => file.endsWith('.md'));

  it.each(pages)('%s leads to a line that the program can compare, and leaves nothing out of its blocks', (file) => {
    const { blocks } = readPage(readFileSync(join(PAGES, file), 'utf8'));
    for (const each of blocks) expect('text' in each ? each.text : each.line).not.toContain('…');
    const installs = blocks.some(
      (each) => each.kind === 'commands' && each.text.includes('pip install "$FLOE/python"'),
    );
    expect(installs).toBe(true);
  });
});
