import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../tools/repository.ts';

const PACKAGES = join(repositoryRoot(), 'packages');
const IMPORT = /^import \{([^}]+)\} from '((?:@floe-rl|floe)[^']*)';$/gm;

/** Returns the modules of floe that the programs of a README import, each with the names that it must export. */
function importsOf(readme: string): (readonly [specifier: string, names: readonly string[]])[] {
  const programs = [...readme.matchAll(/^```js\n([\s\S]*?)^```$/gm)].map(([, program = '']) => program).join('');
  return [...programs.matchAll(IMPORT)].map(([, names = '', specifier = '']) => [
    specifier,
    names.split(',').map((name) => name.trim()),
  ]);
}

/** `floe` has the README of the repository. */
const NAMES = readdirSync(PACKAGES).filter((name) => existsSync(join(PACKAGES, name, 'README.md')));

describe.each(NAMES)('the README of packages/%s', (name) => {
  const imports = importsOf(readFileSync(join(PACKAGES, name, 'README.md'), 'utf8'));

  it.runIf(imports.length > 0)('imports what its package exports', async () => {
    for (const [specifier, names] of imports) {
      expect(Object.keys(await import(/* @vite-ignore */ specifier)), specifier).toEqual(
        expect.arrayContaining([...names]),
      );
    }
  });
});
