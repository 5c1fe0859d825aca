import { basename } from 'node:path';
import { type Packages, withNeededPackages } from '../../tools/packages.ts';
import { type Block, blocksOf } from '../pages/blocks.ts';
import { UserFolder } from './folder.ts';

/** The command of a README that installs what its program imports. */
const INSTALL = /^npm install (.+)$/m;
const OWN_PACKAGE = /^(floe|@floe-rl\/.+)$/;

/**
 * Installs what the README of the package `name` says into an empty folder, with the tarballs of a release in the place of published packages.
 * Then runs the program of the README, and compares its output with the output in the README. `env` has additional variables. Throws an Error
 * when something differs. Returns the last line of the output.
 */
export function runReadme(name: string, packages: Packages, env: NodeJS.ProcessEnv = {}): string {
  const folder = new UserFolder();
  try {
    Object.assign(folder.env, env);
    const tarball = tarballOf(packages, name);
    const text = folder.run('tar', '-xzOf', tarball, 'package/README.md');
    const blocks = blocksOf(basename(tarball), text);
    const names = INSTALL.exec(blockOf(blocks, 'sh'))?.[1]?.split(' ') ?? [];
    const own = names.filter((each) => OWN_PACKAGE.test(each));
    if (!own.includes(name)) throw new Error('its command does not install the package');
    const others = names.filter((each) => !OWN_PACKAGE.test(each));
    const tarballs = withNeededPackages(own).map((each) => tarballOf(packages, each));
    folder.write('package.json', '{"name": "user", "private": true, "type": "module"}\n');
    folder.run('npm', 'install', '--no-audit', '--no-fund', ...tarballs, ...others);
    folder.write('readme.js', blockOf(blocks, 'js'));
    const printed = folder.run(process.execPath, 'readme.js');
    const stated = blocks.find(({ language }) => language === 'text')?.text;
    if (printed.trim() === '' || (stated !== undefined && printed !== stated)) {
      throw new Error(`it printed ${JSON.stringify(printed.slice(0, 500))}`);
    }
    return printed.trim().split('\n').at(-1) ?? '';
  } finally {
    folder.remove();
  }
}

/** Returns the names of the packages with a README of their own. The README of `floe` is the README of the repository. */
export function packagesWithReadme({ tarballs }: Packages): readonly string[] {
  return [...tarballs.keys()].filter((name) => name !== 'floe');
}

export function tarballOf({ tarballs }: Packages, name: string): string {
  const path = tarballs.get(name);
  if (path === undefined) throw new Error(`the release has no package ${name}`);
  return path;
}

function blockOf(blocks: readonly Block[], language: string): string {
  const block = blocks.find((each) => each.language === language);
  if (block === undefined) throw new Error(`its README has no block of ${language}`);
  return block.text;
}
