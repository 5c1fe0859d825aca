import { Marked, type Token, type Tokens } from 'marked';

/** A heading of a page. `id` is the anchor that GitHub gives it, which is unique in the page. */
export type Heading = { readonly depth: number; readonly text: string; readonly id: string };

/** The text of a page below one heading, without markup. The text before the first heading belongs to the page's title. */
export type Section = { readonly heading: Heading; readonly text: string };

const parser = new Marked({ gfm: true });

/** Returns the headings of a page in their order. */
export function headingsOf(markdown: string): Heading[] {
  return sectionsOf(markdown).map(({ heading }) => heading);
}

/** Divides a page at its headings. */
export function sectionsOf(markdown: string): Section[] {
  const ids = new Map<string, number>();
  const sections: { heading: Heading; text: string }[] = [];
  for (const token of parser.lexer(markdown)) {
    if (token.type === 'heading') {
      const { depth, tokens } = token as Tokens.Heading;
      const text = plainText(tokens);
      sections.push({ heading: { depth, text, id: uniqueId(text, ids) }, text: '' });
    } else {
      const section = sections.at(-1);
      if (section !== undefined) section.text += `${plainText([token])}\n`;
    }
  }
  return sections.map(({ heading, text }) => ({ heading, text: text.replaceAll(/\s+/g, ' ').trim() }));
}

/** Returns the targets of all links and images of a page as they are written. */
export function linksOf(markdown: string): string[] {
  const targets: string[] = [];
  parser.walkTokens(parser.lexer(markdown), (token) => {
    if (token.type === 'link' || token.type === 'image') targets.push((token as Tokens.Link).href);
  });
  return targets;
}

/** Renders a page as HTML. Headings have their anchors as ids, and `resolve` gives the address of each link and image. */
export function renderPage(markdown: string, resolve: (href: string) => string): string {
  const ids = new Map<string, number>();
  const marked = new Marked({
    gfm: true,
    walkTokens: (token) => {
      if (token.type !== 'link' && token.type !== 'image') return;
      const link = token as Tokens.Link;
      link.href = resolve(link.href);
    },
    renderer: {
      heading({ tokens, depth }) {
        const id = uniqueId(plainText(tokens), ids);
        return `<h${depth} id="${id}">${this.parser.parseInline(tokens)} <a class="anchor" href="#${id}" aria-label="Link to this section">#</a></h${depth}>\n`;
      },
      // Wide tables scroll in a box of their own, which the keyboard reaches.
      table(token) {
        const row = (cells: readonly Tokens.TableCell[]): string =>
          `<tr>${cells.map((cell) => this.tablecell(cell)).join('')}</tr>`;
        const body = token.rows.map(row).join('\n');
        return `<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead>${row(token.header)}</thead><tbody>${body}</tbody></table></div>\n`;
      },
      code({ text, lang }) {
        return `<pre tabindex="0"><code${lang ? ` class="language-${escapeHtml(lang)}"` : ''}>${escapeHtml(text)}</code></pre>\n`;
      },
    },
  });
  return marked.parse(markdown, { async: false });
}

export function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

/** Returns the anchor that GitHub gives a heading. `ids` counts the anchors of the page so far. */
function uniqueId(text: string, ids: Map<string, number>): string {
  const id = text
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{M}\p{N}\p{Pc} -]/gu, '')
    .replaceAll(' ', '-');
  const count = ids.get(id) ?? 0;
  ids.set(id, count + 1);
  return count === 0 ? id : `${id}-${count}`;
}

/** Returns the text of tokens without markup. The parser escapes some characters in texts, but not in code. */
function plainText(tokens: readonly Token[]): string {
  return tokens.map(textOf).join('');
}

function textOf(token: Token): string {
  if (token.type === 'table') {
    const { header, rows } = token as Tokens.Table;
    return [header, ...rows].map((cells) => cells.map((cell) => plainText(cell.tokens)).join(' ')).join('\n');
  }
  if (token.type === 'list') {
    return (token as Tokens.List).items.map((item) => plainText(item.tokens)).join('\n');
  }
  if (token.type === 'html' || token.type === 'space') return ' ';
  if ('tokens' in token && token.tokens !== undefined) return plainText(token.tokens);
  return 'text' in token ? String(token.text) : '';
}
