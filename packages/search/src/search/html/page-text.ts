import { optionalPackages } from '@floe-rl/core';

/** The readable part of a page, as Markdown. */
export type PageText = { readonly title: string; readonly text: string };

/** Elements without text for readers. */
const LEFT_OUT = ['script', 'style', 'noscript', 'template', 'iframe', 'svg', 'canvas'] as const;

type Packages = Awaited<ReturnType<typeof importPackages>>;

let loading: Promise<Packages> | null = null;

/**
 * Returns the article of a page as Markdown, or all text of the page when no article is found. The duration depends on the page and has no
 * limit, so untrusted pages are read with `readPage`. Rejects with `setup_failed` when the optional packages are missing.
 */
export async function pageText(html: string): Promise<PageText> {
  loading ??= optionalPackages(importPackages, ['linkedom', '@mozilla/readability', 'turndown'], 'reading HTML');
  const { parseHTML, Readability, Turndown } = await loading;
  // The parser needs a root element, which a text without elements does not have.
  const { document } = parseHTML(/<html[\s>]/i.test(html) ? html : `<html><body>${html}</body></html>`);
  const title = document.querySelector('title')?.textContent?.trim() ?? '';
  for (const element of document.querySelectorAll(LEFT_OUT.join(','))) element.remove();
  const whole = document.body?.innerHTML ?? '';
  const article = new Readability(document).parse();
  const turndown = new Turndown({ headingStyle: 'atx', codeBlockStyle: 'fenced', bulletListMarker: '-' });
  // Turndown gets nodes, because it would parse a text with its own parser.
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
