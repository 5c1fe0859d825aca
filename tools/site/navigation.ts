import { Marked, type Token, type Tokens } from 'marked';
import { targetOf } from './sources.ts';

/** A link of the navigation to a page, by the path of its Markdown file. */
export type Entry = { readonly path: string; readonly title: string };

/** A section of the navigation with the pages that its list links, in their order. */
export type Group = { readonly title: string; readonly entries: readonly Entry[] };

/**
 * Reads the navigation from an index page. Each heading of the second level is a group, and each page that is linked below it is an entry. A
 * page that is linked more than once is an entry only at its first link.
 */
export function navigationOf(path: string, markdown: string): Group[] {
  const marked = new Marked();
  const groups: { title: string; entries: Entry[] }[] = [{ title: 'Start', entries: [] }];
  const known = new Set<string>();
  const add = (token: Token): void => {
    if (token.type !== 'link') return;
    const { href, text } = token as Tokens.Link;
    const target = targetOf(path, href);
    if (target === null || !target.path.endsWith('.md') || known.has(target.path)) return;
    known.add(target.path);
    groups.at(-1)?.entries.push({ path: target.path, title: text });
  };
  for (const token of marked.lexer(markdown)) {
    if (token.type === 'heading' && (token as Tokens.Heading).depth === 2) {
      groups.push({ title: (token as Tokens.Heading).text, entries: [] });
    }
    marked.walkTokens([token], add);
  }
  return groups.filter(({ entries }) => entries.length > 0);
}
