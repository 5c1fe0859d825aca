import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { isShell } from '../../../verify/pages/blocks.ts';
import { readFirstStep } from '../../../verify/pages/first-step.ts';
import { differenceOf } from '../../../verify/pages/quoted.ts';

const PAGES = join(repositoryRoot(), 'docs', 'trainers');
const block = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\`\n`;
const STEP = [block('sh', 'python train.py'), block('text', 'first step: gradient norm 0.27')].join('\n');

describe('readFirstStep', () => {
  it('returns the blocks of the first steps in their order, and no block of other sections', () => {
    const page = readFirstStep(
      'page',
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
    const found = page.blocks.map(({ language, text, file, quoted }) => [language, text, file, quoted]);
    const step = ['sh', 'python train.py\n', null, 'first step: gradient norm 0.27\n'];
    const line = ['text', 'first step: gradient norm 0.27\n', null, null];
    expect(found).toEqual([
      ['sh', '# a comment\npip install x\n', null, null],
      ['python', '# train.py\nprint(1)\n', 'train.py', null],
      step,
      line,
      ['yaml', '# loops/agent.yaml\na: 1\n', 'loops/agent.yaml', null],
      step,
      line,
    ]);
  });

  it('takes the first sentence of "The first samples" as the reason for which there is no step', () => {
    const text = `## The first samples\n\nIts packages are on no\nregistry. Here are samples.\n\n${STEP}`;
    expect(readFirstStep('page', text).noStep).toBe('Its packages are on no registry.');
  });

  it('does not take a comment in a block for a title', () => {
    const commands = block('sh', '## The first step\necho 1');
    expect(readFirstStep('page', `## The first step\n\n${commands}\n${STEP}`).blocks).toHaveLength(3);
  });

  it.each([
    ['no section of that name', `## Usage\n\n${STEP}`],
    ['no commands', `## The first step\n\n${block('text', 'first step')}`],
    ['no quoted line after its last commands', `## The first step\n\n${STEP}\n${block('sh', 'echo 1')}`],
  ])('throws for a page with %s', (_, text) => {
    expect(() => readFirstStep('page', text)).toThrow('the page needs a section');
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
    const { blocks } = readFirstStep(file, readFileSync(join(PAGES, file), 'utf8'));
    for (const { text } of blocks) expect(text).not.toContain('…');
    const installs = blocks.some(
      ({ language, text }) => isShell(language) && text.includes('pip install "$FLOE/python"'),
    );
    expect(installs).toBe(true);
  });
});
