import { openSearch, openWebPage, type StoredDocument, searchServices } from '@floe-rl/search';
import { z } from 'zod';
import { defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';
import { observationOf } from './search.ts';

/** Number of characters that one call shows at most. */
const MAX_CHARS = 20_000;
/** Number of loaded pages that a session keeps. */
const MAX_KEPT_PAGES = 8;

const configSchema = z.strictObject({
  max_chars: z
    .int()
    .min(200)
    .max(MAX_CHARS)
    .default(6_000)
    .describe('number of characters that a call shows when the agent names none'),
});

/** Shows a part of a document of the node's index, or of a page of the web where the operator allows its host. */
export const openPageToolset = defineToolset({
  name: 'open_page',
  description: 'shows a document of the index, or a page of the web',
  config: configSchema,
  scope: 'session',
  async open({ max_chars: defaultChars }, { services }) {
    const { source, pageHosts } = searchServices(services);
    const backend = source === null ? null : openSearch(source);
    /** Pages that this session has loaded, so that its next parts are of the same text. */
    const pages = new Map<string, StoredDocument>();

    const find = async (page: string, signal: AbortSignal): Promise<StoredDocument> => {
      const known = backend?.document(page) ?? pages.get(page) ?? null;
      if (known !== null) return known;
      if (!/^https?:\/\//i.test(page))
        throw new ToolError('not_found', `there is no document with the id ${page.slice(0, 200)}`);
      if (pageHosts?.length === 0)
        throw new ToolError(
          'not_found',
          `there is no document ${page.slice(0, 200)}, and pages of the web cannot be opened here`,
        );
      const { title, text } = await openWebPage(page, pageHosts, signal).catch((error: unknown) => {
        throw observationOf(error);
      });
      const document = { id: page, title, url: page, text };
      if (pages.size >= MAX_KEPT_PAGES) pages.delete(pages.keys().next().value ?? '');
      pages.set(page, document);
      return document;
    };

    const tool = defineTool({
      name: 'open_page',
      description: 'Shows a document or page, from the character `start` on.',
      effect: 'none',
      parameters: z.object({
        page: z.string().min(1).describe('id or URL of a search result'),
        start: z.int().min(0).default(0).describe('position of the first character'),
        max_chars: z.int().min(200).max(MAX_CHARS).default(defaultChars).describe('number of characters'),
      }),
      async run({ page, start, max_chars: length }, _, signal) {
        return partOf(await find(page, signal), start, length);
      },
    });
    return { tools: [tool] };
  },
});

function partOf({ title, url, text }: StoredDocument, start: number, length: number): string {
  if (start >= text.length && start > 0) {
    throw new ToolError('failed', `the page has ${text.length} characters; start must be less`);
  }
  const end = Math.min(text.length, start + length);
  const next = end < text.length ? `; continue with start ${end}` : '';
  const head = [title, url].filter((line) => line !== null && line !== '').join('\n');
  const range =
    start === 0 && end === text.length ? '' : `\n\n[characters ${start} to ${end} of ${text.length}${next}]`;
  return `${head === '' ? '' : `${head}\n\n`}${text.slice(start, end)}${range}`;
}
