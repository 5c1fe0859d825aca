import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { dirname, normalize } from 'node:path/posix';
import { headingsOf, linksOf } from './markdown.ts';

/** A page of the documentation. `path` is the path of its Markdown file, relative to the repository. */
export type Page = { readonly path: string; readonly title: string; readonly markdown: string };

/**
 * The contents of the site: the pages below `docs/`, README.md, and all pages and files of the repository that a page links. `folders` lists
 * the files of each linked folder that has no README.md.
 */
export type Sources = {
  readonly pages: readonly Page[];
  readonly files: readonly string[];
  readonly folders: ReadonlyMap<string, readonly string[]>;
};

/** The target of a link: a path relative to the repository, empty for the page itself, and the anchor without `#`, which may be empty. */
export type Target = { readonly path: string; readonly anchor: string };

/** Returns the target of a link of a page in the repository; `null` for a link to another host. */
export function targetOf(from: string, href: string): Target | null {
  if (/^[a-z][a-z+.-]*:|^\/\//i.test(href)) return null;
  const [path = '', anchor = ''] = href.split('#');
  const target = path === '' ? from : normalize(`${dirname(from)}/${decodeURIComponent(path)}`).replace(/\/$/, '');
  return { path: target, anchor };
}

/** Reads the pages and the pages and files that they link. Links to files that do not exist are left out. */
export function readSources(root: string): Sources {
  const pages = new Map<string, Page>();
  const files = new Set<string>();
  const folders = new Map<string, readonly string[]>();
  const waiting = ['README.md', ...filesBelow(root, 'docs').filter((path) => path.endsWith('.md'))];
  for (let path = waiting.shift(); path !== undefined; path = waiting.shift()) {
    const file = join(root, path);
    if (pages.has(path) || files.has(path) || folders.has(path) || path.startsWith('..') || !existsSync(file)) continue;
    if (statSync(file).isDirectory()) {
      const names = existsSync(join(file, 'README.md')) ? [`${path}/README.md`] : filesBelow(root, path);
      folders.set(path, names);
      waiting.push(...names);
      continue;
    }
    if (!path.endsWith('.md')) {
      files.add(path);
      continue;
    }
    const markdown = readFileSync(file, 'utf8');
    pages.set(path, { path, title: headingsOf(markdown)[0]?.text ?? path, markdown });
    for (const href of linksOf(markdown)) waiting.push(targetOf(path, href)?.path ?? path);
  }
  return { pages: [...pages.values()], files: [...files], folders };
}

/** Returns the files below a folder, relative to the repository, in order. Hidden files and files that tools have made are left out. */
function filesBelow(root: string, folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true })
    .filter(({ name }) => !name.startsWith('.') && name !== '__pycache__' && name !== 'node_modules')
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => {
      const path = `${folder}/${entry.name}`;
      return entry.isDirectory() ? filesBelow(root, path) : [path];
    });
}
