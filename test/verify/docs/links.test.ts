import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readSources } from '../../../tools/site/sources.ts';
import { checkIndex, checkSiteLinks, checkSourceLinks } from '../../../verify/docs/links.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'floe-links-'));
  mkdirSync(join(root, 'docs'));
});
afterEach(() => rmSync(root, { recursive: true }));

function write(path: string, text: string): void {
  writeFileSync(join(root, path), text);
}

it('the check reports links to missing files and headings, and follows all others', () => {
  write('README.md', '# A\n\n[docs](docs/README.md#b) [out](https://example.org/x) [mail](mailto:a@b)\n');
  write(
    'docs/README.md',
    '# B\n\n[up](../README.md#a) [gone](gone.md) [place](../README.md#c) [here](#b) ![no](no.svg)\n',
  );
  const { links, findings } = checkSourceLinks(root, readSources(root));
  expect(links).toBe(6);
  expect(findings).toEqual([
    { where: 'docs/README.md', problem: 'the link gone.md leads to no file' },
    { where: 'docs/README.md', problem: 'the link ../README.md#c leads to no heading' },
    { where: 'docs/README.md', problem: 'the link no.svg leads to no file' },
  ]);
});

it('the check reports pages that the index does not link', () => {
  write('README.md', '# A\n');
  write('docs/README.md', '# B\n\n- [C](c.md)\n');
  write('docs/c.md', '# C\n');
  write('docs/d.md', '# D\n');
  expect(checkIndex(readSources(root))).toEqual([
    { where: 'docs/d.md', problem: 'is not in the index docs/README.md' },
  ]);
});

it('the check reports addresses of a site that are absolute, that lead nowhere, or that load something from elsewhere', () => {
  write('docs/a.html', '<h2 id="x"></h2><a href="b.html#y"></a><a href="#x"></a><a href="https://example.org"></a>');
  write(
    'docs/b.html',
    '<h2 id="z"></h2><a href="/docs/a.html"></a><script src="https://cdn.example.org/a.js"></script>',
  );
  expect(checkSiteLinks(root).findings.map(({ problem }) => problem)).toEqual([
    'b.html#y leads to no element',
    '/docs/a.html is no file of the site',
    'https://cdn.example.org/a.js is loaded from another host',
  ]);
});
