import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { shellWord } from '../../src/shell-word.ts';

it.each(['plain', '', "it's", "'; exit 1 #'", '$(id) `id` "$HOME" \\', 'two\nlines'])(
  'a shell reads the word of %j as that text',
  (text) => {
    const { stdout } = spawnSync('sh', ['-c', `printf %s ${shellWord(text)}`], { encoding: 'utf8' });
    expect(stdout).toBe(text);
  },
);
