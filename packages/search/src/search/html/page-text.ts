import { optionalPackages } from '@floe-rl/core';

/** The readable part of a page, as Markdown. */
export type PageText = { readonly title: string; readonly text: string };

/** Elements that have no text for readers. */
const LEFT_OUT = ['script', 'style', 'noscript', 'template', 'iframe', 'svg', 'canvas'] as const;

type Packages = Awaited<ReturnType<typeof importPackages>>;

let loading: Promise<Packages> | null = null;

/**
 * Returns the article of a page as Markdown; all of its text where no article is found. Takes a time that the page decides: for pages of
 * strangers, use {@link ../html/page-reader.ts}. Rejects with `setup_failed` when the optional packages are missing.
 */
export async function pageText(html: string): Promise<PageText> {
  loading ??= optionalPackages(importPackages, ['linkedom', '@mozilla/readability', 'turndown'], 'reading HTML');
  const { parseHTML, Readability, Turndown } = await loading;
  // A text without elements has no root, which the parser needs.
  const { document } = parseHTML(/<html[\s>]/i.test(html) ? html : `<html><body>${html}</body></html>`);
  const title = document.querySelector('title')?.textContent?.trim() ?? '';
  for (const element of document.querySelectorAll(LEFT_OUT.join(','))) element.remove();
  const whole = document.body?.innerHTML ?? '';
  const article = new Readability(document).parse();
  const turndown = new Turndown({ headingStyle: 'atx', codeBlockStyle: 'fenced', bulletListMarker: '-' });
  // Turndown gets nodes, because it would otherwise parse the text with a parser of its own.
  const { document: content } = parseHTML(`<html><body>${article?.content ?? whole}</body></html>`);
  const text = turndown.turndown(content.body);
  return { title: title || (article?.title?.trim() ?? ''), text };
}

async function importPackages() {
  const [{ parseHTML }, { Readability }, { default: Turndown }] = await Promise.all([
    import('linkedom'),
    import('@mozilla/readability'),
    import('turndown'),
  ]);
  return { parseHTML, Readability, Turndown };
}
