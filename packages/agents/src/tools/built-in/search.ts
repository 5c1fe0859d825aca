import { FloeError } from '@floe-rl/core';
import { openSearch, requireSource, type SearchHit, searchServices } from '@floe-rl/search';
import { z } from 'zod';
import { defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

/** Maximum number of results of a search. */
const MAX_RESULTS = 50;

const configSchema = z.strictObject({
  top_k: z.int().min(1).max(MAX_RESULTS).default(5).describe('number of results when the agent names none'),
});

/** Searches the documents of the node's index, or the web by the node's search service. */
export const searchToolset = defineToolset({
  name: 'search',
  description: 'searches documents of an index, or the web by a service',
  config: configSchema,
  scope: 'session',
  async open({ top_k: defaultCount }, { services }) {
    const backend = openSearch(requireSource(searchServices(services), 'search'));
    const tool = defineTool({
      name: 'search',
      description: `Searches documents. Returns the best results with id, title, URL and the part of the text that matches${
        backend.hasDocuments ? '; open_page shows a whole document' : ''
      }.`,
      effect: 'none',
      parameters: z.object({
        query: z.string().describe('words to search for'),
        top_k: z.int().min(1).max(MAX_RESULTS).default(defaultCount).describe('number of results'),
      }),
      async run({ query, top_k: count }, { count: add }, signal) {
        const hits = await backend.search(query, count, signal).catch((error: unknown) => {
          throw observationOf(error);
        });
        add('search.results', hits.length);
        return hits.length === 0 ? 'No results. Try other or fewer words.' : hits.map(resultText).join('\n\n');
      },
    });
    return { tools: [tool] };
  },
});

function resultText({ id, title, url, snippet }: SearchHit, index: number): string {
  const links = [`id: ${id}`, ...(url === null || url === id ? [] : [`url: ${url}`])];
  return [`${index + 1}. ${title === '' ? '(no title)' : title}`, ...links, snippet].join('\n   ');
}

/** What a query causes is an observation; a service that does not answer is not the agent's doing. */
export function observationOf(error: unknown): unknown {
  return FloeError.is(error) && error.code === 'bad_request' ? new ToolError('failed', error.message) : error;
}
