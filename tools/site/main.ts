// `npm run docs [-- --out DIR] [-- --version NAME]`: builds the documentation as a site of static files, by default in `site/`, for the version
// of package.json. Folders of other versions in DIR stay, and the pages offer all of them.

import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { repositoryRoot } from '../repository.ts';
import { buildSite } from './build.ts';

const { values } = parseArgs({ options: { out: { type: 'string' }, version: { type: 'string' } } });
const root = repositoryRoot();
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { readonly version: string };
const version = values.version ?? manifest.version;
if (!/^[\w.-]+$/.test(version) || version.startsWith('.')) {
  console.error(`--version ${version}: use letters, digits, dots and dashes, because it is the name of a folder`);
  process.exit(2);
}
const out = resolve(values.out ?? join(root, 'site'));
const { pages, files } = buildSite({ root, out, version });
console.log(`docs: ${pages} pages and ${files} files in ${join(out, version)}; open ${join(out, 'index.html')}`);
