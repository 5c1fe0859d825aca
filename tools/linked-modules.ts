import { mkdirSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Makes `node_modules` in a copy of the repository. It links to the installed modules of the repository `root`. Links to packages of floe lead
 * to the copy, so that programs of the copy run the copy's code.
 */
export function linkModules(root: string, copy: string): void {
  const target = join(copy, 'node_modules');
  mkdirSync(target);
  const own = readdirSync(join(copy, 'packages')).map((folder) => {
    const manifest = JSON.parse(readFileSync(join(copy, 'packages', folder, 'package.json'), 'utf8')) as {
      name: string;
    };
    return { name: manifest.name, path: join(copy, 'packages', folder) };
  });
  const scope = '@floe-rl';
  mkdirSync(join(target, scope));
  for (const { name, path } of own) symlinkSync(path, join(target, name));
  for (const name of readdirSync(join(root, 'node_modules'))) {
    if (name === scope || own.some((one) => one.name === name)) continue;
    symlinkSync(join(root, 'node_modules', name), join(target, name));
  }
}
