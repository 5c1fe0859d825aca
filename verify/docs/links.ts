import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { dirname, normalize } from 'node:path/posix';
import { headingsOf, linksOf } from '../../tools/site/markdown.ts';
import { navigationOf } from '../../tools/site/navigation.ts';
import { type Sources, targetOf } from '../../tools/site/sources.ts';
import type { Finding } from './finding.ts';

export type LinkCheck = { readonly links: number; readonly findings: readonly Finding[] };

/** Pages that are found by other ways than the index of the documentation. */
const OUTSIDE_INDEX = /^docs\/decisions\/|^(?!docs\/)|^docs\/README\.md$/;

/** Checks that each link of the pages leads to a file of the repository, and each anchor to a heading. */
export function checkSourceLinks(root: string, { pages }: Sources): LinkCheck {
  const anchors = new Map(pages.map(({ path, markdown }) => [path, new Set(headingsOf(markdown).map(({ id }) => id))]));
  const findings: Finding[] = [];
  let links = 0;
  for (const { path, markdown } of pages) {
    for (const href of linksOf(markdown)) {
      const target = targetOf(path, href);
      if (target === null) continue;
      links++;
      const ids = anchors.get(target.path);
      if (!existsSync(join(root, target.path)))
        findings.push({ where: path, problem: `the link ${href} leads to no file` });
      else if (target.anchor !== '' && ids !== undefined && !ids.has(target.anchor)) {
        findings.push({ where: path, problem: `the link ${href} leads to no heading` });
      }
    }
  }
  return { links, findings };
}

/** Checks that the index of the documentation links every page. */
export function checkIndex({ pages }: Sources): Finding[] {
  const index = pages.find(({ path }) => path === 'docs/README.md');
  if (index === undefined) return [{ where: 'docs/README.md', problem: 'is missing' }];
  const linked = new Set(
    navigationOf(index.path, index.markdown).flatMap(({ entries }) => entries.map(({ path }) => path)),
  );
  return pages
    .filter(({ path }) => !OUTSIDE_INDEX.test(path) && !linked.has(path))
    .map(({ path }) => ({ where: path, problem: 'is not in the index docs/README.md' }));
}

/** Checks the addresses in the pages of a built site: each leads to a file of the site and to an element with its anchor, and none is absolute. */
export function checkSiteLinks(site: string): LinkCheck {
  const files = new Set(readdirSync(site, { recursive: true, encoding: 'utf8' }));
  const ids = new Map<string, Set<string>>();
  const pages = [...files].filter((path) => path.endsWith('.html'));
  const texts = new Map(pages.map((path) => [path, readFileSync(join(site, path), 'utf8')]));
  for (const [path, text] of texts)
    ids.set(path, new Set([...text.matchAll(/ id="([^"]+)"/g)].map(([, id = '']) => id)));
  const findings: Finding[] = [];
  let links = 0;
  for (const [path, text] of texts) {
    for (const [, address = ''] of text.matchAll(/ (?:href|src)="([^"]+)"/g)) {
      if (/^(?:https?|mailto|data):/.test(address)) continue;
      links++;
      const [file = '', anchor = ''] = address.replaceAll('&amp;', '&').split('#');
      const target = file === '' ? path : normalize(`${dirname(path)}/${decodeURIComponent(file)}`);
      if (file.startsWith('/') || !files.has(target))
        findings.push({ where: path, problem: `${address} is no file of the site` });
      else if (anchor !== '' && ids.get(target)?.has(anchor) !== true) {
        findings.push({ where: path, problem: `${address} leads to no element` });
      }
    }
    for (const [, address] of text.matchAll(/<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"/g)) {
      findings.push({ where: path, problem: `${address} is loaded from another host` });
    }
  }
  return { links, findings };
}
