import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { buildSite } from '../../../tools/site/build.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'floe-site-'));
  write('README.md', '# floe\n\n[Docs](docs/README.md), [the code](examples/a.ts)\n');
  write('docs/README.md', '# Documentation\n\n[Start](start.md)\n\n## Words\n\n- [Glossary](glossary.md#a-word)\n');
  write(
    'docs/start.md',
    '# Start\n\nRead [why](decisions/) and ![a curve](curve.svg).\n\n```sh\necho "<a & b>"\n```\n',
  );
  write('docs/glossary.md', '# Glossary\n\n## A `word`\n\nText\n\n## A word\n\nMore\n');
  write('docs/decisions/0001-one.md', '# One\n\n[All](../README.md#words)\n');
  write('docs/curve.svg', '<svg/>');
  write('examples/a.ts', 'const a = 1 < 2;\n');
  write('docs/openapi.json', readFileSync(join(repositoryRoot(), 'docs', 'openapi.json'), 'utf8'));
  write('tools/site/assets/style.css', '');
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

function build(version = '1.0.0'): (path: string) => string {
  buildSite({ root, out: join(root, 'site'), version });
  return (path) => readFileSync(join(root, 'site', path), 'utf8');
}

describe('the site', () => {
  it('has each page in HTML and in Markdown, with links that are relative', () => {
    const read = build();
    const page = read('1.0.0/docs/start.html');
    expect(page).toContain('href="decisions/index.html"');
    expect(page).toContain('src="curve.svg"');
    expect(page).toContain('echo &quot;&lt;a &amp; b&gt;&quot;');
    expect(page).not.toMatch(/(?:href|src)="(?:\/|https?:)/);
    expect(read('1.0.0/docs/start.md')).toBe(readFileSync(join(root, 'docs/start.md'), 'utf8'));
    expect(read('1.0.0/docs/decisions/index.html')).toContain('<a href="0001-one.html">One</a>');
    expect(read('1.0.0/README.html')).toContain('href="examples/a.ts.html"');
    expect(read('1.0.0/examples/a.ts.html')).toContain('const a = 1 &lt; 2;');
    expect(existsSync(join(root, 'site/1.0.0/docs/curve.svg'))).toBe(true);
  });

  it('gives headings the anchors that GitHub gives them', () => {
    const page = build()('1.0.0/docs/glossary.html');
    expect([...page.matchAll(/<h2 id="([^"]+)"/g)].map(([, id]) => id)).toEqual(['a-word', 'a-word-1']);
  });

  it('takes its navigation from the index of the documentation, and marks the page that is shown', () => {
    const page = build()('1.0.0/docs/glossary.html');
    expect(page).toContain('<h2>Words</h2>\n<ul><li><a href="../docs/glossary.html" aria-current="page">Glossary</a>');
  });

  it('keeps the other versions, lists the newest first, and opens the newest', () => {
    build('1.2.0');
    build('1.10.0');
    const read = build('1.2.0');
    const versions = JSON.parse(read('versions.json')) as { version: string; pages: string[] }[];
    expect(versions.map(({ version }) => version)).toEqual(['1.10.0', '1.2.0']);
    expect(versions[0]?.pages).toContain('docs/start.html');
    expect(read('index.html')).toContain('url=1.10.0/docs/README.html');
    expect(read('1.10.0/docs/start.html')).toContain('data-version="1.10.0"');
  });

  it('lists all pages for language models, and has their text in one file', () => {
    const read = build();
    expect(read('llms.txt')).toContain('## Words\n\n- [Glossary](1.0.0/docs/glossary.md)');
    expect(read('1.0.0/llms.txt')).toContain('- [One](docs/decisions/0001-one.md)');
    expect(read('1.0.0/llms-full.txt')).toContain('<!-- docs/glossary.md -->\n\n# Glossary');
  });

  it('has the sections of all pages for the search, without markup', () => {
    const text = build()('1.0.0/assets/sections.js');
    const sections = JSON.parse(text.slice(text.indexOf('[')).replace(/;\n$/, '')) as { url: string; text: string }[];
    expect(sections.find(({ url }) => url === 'docs/glossary.html#a-word-1')).toMatchObject({
      title: 'Glossary',
      heading: 'A word',
      text: 'More',
    });
    expect(sections.find(({ url }) => url === 'docs/start.html')?.text).toBe('Read why and a curve. echo "<a & b>"');
  });
});
