import { asFloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { type JsonService, postJson, unreadable } from './post-json.ts';
import type { SearchBackend, SearchHit } from './search.ts';

/** Maximum number of characters that are kept of the content of a result. */
const MAX_CONTENT_CHARS = 2_000;

const answerSchema = z.object({
  results: z.array(
    z.object({
      title: z.string().nullish(),
      url: z.string(),
      content: z.string().nullish(),
      score: z.number().nullish(),
    }),
  ),
});

/** Searches with a web service that has Tavily's API: it answers `POST {query, max_results}` with `{results: [{title, url, content}]}`. */
export class HttpSearch implements SearchBackend {
  readonly hasDocuments = false;
  private readonly service: JsonService;

  constructor(url: string, key: string | null) {
    this.service = { url, key, name: 'the search service (plugins.services.search)' };
  }

  async search(query: string, count: number, signal: AbortSignal): Promise<readonly SearchHit[]> {
    const answer = await postJson(this.service, { query, max_results: count }, signal);
    const { results } = this.parsed(answer);
    return results.slice(0, count).map(({ title, url, content, score }) => ({
      id: url,
      title: title ?? '',
      url,
      snippet: (content ?? '').slice(0, MAX_CONTENT_CHARS),
      score: score ?? 0,
    }));
  }

  document(): null {
    return null;
  }

  private parsed(answer: unknown): z.output<typeof answerSchema> {
    try {
      return parseAs(answerSchema, answer, 'the answer');
    } catch (error) {
      throw unreadable(this.service, asFloeError(error).message);
    }
  }
}
