import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { extname, relative } from 'node:path/posix';
import { fileURLToPath } from 'node:url';
import { apiReference, callForms, type OpenApi, TRY_PAGE } from './api-pages.ts';
import { htmlPath, layout } from './layout.ts';
import { escapeHtml, headingsOf, renderPage, sectionsOf } from './markdown.ts';
import { type Group, navigationOf } from './navigation.ts';
import { type Page, readSources, type Sources, targetOf } from './sources.ts';

export type SiteOptions = {
  /** The repository whose `docs/` is built. */
  readonly root: string;
  /** Folder of the site. Folders of other versions in it stay. */
  readonly out: string;
  readonly version: string;
};

export type Site = { readonly pages: number; readonly files: number };

/** A version of the site, with the paths of its pages, so that the switch of versions can stay on the same page. */
type Version = { readonly version: string; readonly pages: readonly string[] };

const INDEX = 'docs/README.md';
const REFERENCE = 'docs/api-reference.md';
const TRY = 'docs/try-the-api.md';
/** Endings of the names of files whose content is shown in a page. All linked files are copied. */
const CODE = new Set([
  '.ts',
  '.js',
  '.mjs',
  '.py',
  '.sh',
  '.yaml',
  '.yml',
  '.json',
  '.jsonl',
  '.toml',
  '.txt',
  '.rules',
]);

/** Builds the site of one version: a page in HTML and in Markdown for each page, the search, and the texts for language models. */
export function buildSite({ root, out, version }: SiteOptions): Site {
  const sources = withApiPages(readSources(root), root);
  const dir = join(out, version);
  rmSync(dir, { recursive: true, force: true });
  const groups = groupsOf(sources);
  const write = (path: string, text: string): void => {
    const file = join(dir, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  };
  for (const page of sources.pages) {
    write(page.path, page.markdown);
    write(htmlPath(page.path), pageHtml(page, sources, groups, version));
  }
  for (const path of sources.files) {
    if (CODE.has(extname(path)))
      write(`${path}.html`, codeHtml(path, readFileSync(join(root, path), 'utf8'), groups, version));
    mkdirSync(dirname(join(dir, path)), { recursive: true });
    copyFileSync(join(root, path), join(dir, path));
  }
  for (const [folder, paths] of sources.folders) {
    if (paths.includes(`${folder}/README.md`)) continue;
    write(`${folder}/index.html`, folderHtml(folder, paths, sources, groups, version));
  }
  const { pages } = sources;
  write('llms.txt', llmsText(sources, groups, ''));
  write('llms-full.txt', pages.map(({ path, markdown }) => `<!-- ${path} -->\n\n${markdown}`).join('\n\n'));
  write('index.html', redirect(htmlPath(INDEX)));
  writeAssets(root, dir, pages);
  const paths = pages.map(({ path }) => htmlPath(path)).sort();
  const versions = updateVersions(out, { version, pages: paths });
  writeFileSync(join(out, 'index.html'), redirect(`${versions[0]?.version ?? version}/${htmlPath(INDEX)}`));
  writeFileSync(join(out, 'llms.txt'), llmsText(sources, groups, `${version}/`));
  return { pages: pages.length, files: sources.files.length };
}

function withApiPages(sources: Sources, root: string): Sources {
  const api = readApi(root);
  const pages = [
    { path: REFERENCE, title: 'HTTP API reference', markdown: apiReference(api) },
    { path: TRY, title: 'Try the API', markdown: TRY_PAGE },
  ];
  return { ...sources, pages: [...sources.pages, ...pages] };
}

function readApi(root: string): OpenApi {
  return JSON.parse(readFileSync(join(root, 'docs', 'openapi.json'), 'utf8')) as OpenApi;
}

/** Returns the navigation: the groups of the index page, the pages about the API, and the pages that the index does not link. */
function groupsOf({ pages }: Sources): Group[] {
  const index = pages.find(({ path }) => path === INDEX);
  if (index === undefined) throw new Error(`${INDEX} is missing: it is the navigation of the site`);
  const groups = navigationOf(INDEX, index.markdown);
  const linked = new Set([INDEX, ...groups.flatMap(({ entries }) => entries.map(({ path }) => path))]);
  const entry = ({ path, title }: Page) => ({ path, title });
  const calls = pages.filter(({ path }) => path === REFERENCE || path === TRY).map(entry);
  const own = new Set([REFERENCE, TRY]);
  const others = pages.filter(({ path }) => !linked.has(path) && !own.has(path) && !isDecision(path)).map(entry);
  return [
    { title: 'Documentation', entries: [{ path: INDEX, title: 'All pages' }] },
    ...groups.map((group) =>
      group.title === 'Reference' ? { ...group, entries: [...group.entries, ...calls] } : group,
    ),
    ...(groups.some(({ title }) => title === 'Reference') ? [] : [{ title: 'Reference', entries: calls }]),
    { title: 'More', entries: others },
  ].filter(({ entries }) => entries.length > 0);
}

function isCode(path: string): boolean {
  return CODE.has(extname(path)) && path !== 'docs/openapi.json';
}

/** Whether a page is one of the decisions. Decisions have a list of their own and are not in the navigation. */
function isDecision(path: string): boolean {
  return path.startsWith('docs/decisions/');
}

function pageHtml(page: Page, sources: Sources, groups: readonly Group[], version: string): string {
  const content = renderPage(page.markdown, (href) => addressOf(page.path, href, sources));
  return layout(page.path === TRY ? `${content}<div id="try"></div>` : content, {
    title: page.title,
    toVersion: toVersion(page.path),
    page: htmlPath(page.path),
    version,
    groups,
    headings: headingsOf(page.markdown),
    twin: page.path.slice(page.path.lastIndexOf('/') + 1),
    scripts: page.path === TRY ? ['assets/api.js', 'assets/try.js'] : [],
  });
}

/** Returns the address in the site for a link as it is written in the page. */
function addressOf(from: string, href: string, { pages, files, folders }: Sources): string {
  const target = targetOf(from, href);
  if (target === null || target.path === from) return href;
  const { path, anchor } = target;
  const end = anchor === '' ? '' : `#${anchor}`;
  const here = from.includes('/') ? from.slice(0, from.lastIndexOf('/')) : '.';
  if (pages.some((page) => page.path === path)) return `${relative(here, htmlPath(path))}${end}`;
  const isFolder = folders.has(path);
  if (isFolder && folders.get(path)?.[0] === `${path}/README.md`) return `${relative(here, path)}/README.html${end}`;
  if (isFolder) return `${relative(here, path) || '.'}/index.html${end}`;
  if (files.includes(path) && isCode(path)) return `${relative(here, path)}.html`;
  return href;
}

function codeHtml(path: string, text: string, groups: readonly Group[], version: string): string {
  const name = path.slice(path.lastIndexOf('/') + 1);
  const content = `<h1>${escapeHtml(path)}</h1>\n<pre tabindex="0"><code>${escapeHtml(text)}</code></pre>`;
  return layout(content, {
    title: path,
    toVersion: toVersion(path),
    page: `${path}.html`,
    version,
    groups,
    headings: [],
    twin: name,
    scripts: [],
  });
}

function folderHtml(
  folder: string,
  paths: readonly string[],
  { pages }: Sources,
  groups: readonly Group[],
  version: string,
): string {
  const items = paths.map((path) => {
    const page = pages.find((one) => one.path === path);
    const inside = relative(folder, path);
    const address = page === undefined ? (isCode(path) ? `${inside}.html` : inside) : htmlPath(inside);
    return `<li><a href="${escapeHtml(address)}">${escapeHtml(page?.title ?? inside)}</a></li>`;
  });
  const title = folder.slice(folder.lastIndexOf('/') + 1);
  return layout(`<h1>${escapeHtml(title)}</h1>\n<ul>${items.join('\n')}</ul>`, {
    title,
    toVersion: toVersion(`${folder}/index.html`),
    page: `${folder}/index.html`,
    version,
    groups,
    headings: [],
    twin: `${toVersion(`${folder}/index.html`)}llms.txt`,
    scripts: [],
  });
}

function toVersion(path: string): string {
  return '../'.repeat(path.split('/').length - 1);
}

/** Returns the list of pages in the form of https://llmstxt.org, with the addresses of their Markdown files. */
function llmsText({ pages }: Sources, groups: readonly Group[], prefix: string): string {
  const titles = new Map(pages.map(({ path, title }) => [path, title]));
  const decisions = pages.filter(({ path }) => isDecision(path));
  const lines = [...groups, { title: 'Optional', entries: decisions }].flatMap(({ title, entries }) => [
    `## ${title}`,
    '',
    ...entries.map(({ path }) => `- [${titles.get(path) ?? path}](${prefix}${path})`),
    '',
  ]);
  const summary =
    'Rollouts as a service for reinforcement learning of LLM agents: any agent, any trainer, exact tokens.';
  const full = `All pages in one file: [llms-full.txt](${prefix}llms-full.txt).`;
  return ['# floe', '', `> ${summary}`, '', full, '', ...lines].join('\n');
}

function redirect(address: string): string {
  return `<!doctype html><meta charset="utf-8"><title>floe</title><meta http-equiv="refresh" content="0; url=${address}"><a href="${address}">floe</a>\n`;
}

/** Writes scripts and styles. Data is stored in scripts, because a page that is opened as a file can load only scripts. */
function writeAssets(root: string, dir: string, pages: readonly Page[]): void {
  const assets = join(dir, 'assets');
  cpSync(join(root, 'tools', 'site', 'assets'), assets, { recursive: true });
  // The package exports only its modules. The file for a script element is next to their folder.
  const modules = dirname(fileURLToPath(import.meta.resolve('minisearch')));
  copyFileSync(join(modules, '..', 'umd', 'index.js'), join(assets, 'minisearch.js'));
  const sections = pages.flatMap(({ path, title, markdown }) =>
    sectionsOf(markdown).map(({ heading, text }) => ({
      title,
      heading: heading.text,
      url: `${htmlPath(path)}${heading.depth === 1 ? '' : `#${heading.id}`}`,
      text,
    })),
  );
  writeFileSync(join(assets, 'sections.js'), `window.floeSections = ${JSON.stringify(sections)};\n`);
  writeFileSync(join(assets, 'api.js'), `window.floeApi = ${JSON.stringify(callForms(readApi(root)))};\n`);
}

/** Adds a version to the list of the site's versions, the newest first, and returns the list. */
function updateVersions(out: string, built: Version): readonly Version[] {
  const file = join(out, 'versions.json');
  const known = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as readonly Version[]) : [];
  const newestFirst = (a: Version, b: Version): number => b.version.localeCompare(a.version, 'en', { numeric: true });
  const versions = [...known.filter(({ version }) => version !== built.version), built].sort(newestFirst);
  writeFileSync(file, `${JSON.stringify(versions, null, 1)}\n`);
  writeFileSync(join(out, 'versions.js'), `window.floeVersions = ${JSON.stringify(versions)};\n`);
  return versions;
}
