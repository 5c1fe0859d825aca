import { FloeError } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';
import type { IndexFile } from './index-file.ts';
import { MAX_QUERY_CHARS, type SearchBackend, type SearchHit, type StoredDocument } from './search.ts';
import { snippetOf } from './snippet.ts';
import { queryWords } from './words.ts';

/** Weights in the BM25 score of words in titles and of words in texts. */
const WEIGHTS = '2.0, 1.0';
/** Number of passages that are read for each requested document, because several passages may belong to one document. */
const PASSAGES_PER_DOCUMENT = 4;
/** Maximum number of words whose frequency is cached. */
const KNOWN_WORDS = 20_000;
/** Number of passages that a search scores at most, if the words of the query are rare enough. */
const SCORED_PASSAGES = 1_000;
/** A word that occurs in at least this share of the passages is left out of a query with rarer words, because it hardly changes the ranking. */
const FREQUENT_SHARE = 0.25;

// The score is a column, because FTS5 would compute it twice for `order by rank`.
const MATCH = `select rowid as passage, bm25(words, ${WEIGHTS}) as cost from words where words match ? order by cost limit ?`;

/** Searches an index by words, with BM25. */
export class WordSearch implements SearchBackend {
  readonly hasDocuments = true;
  private readonly index: IndexFile;
  /** Number of passages that contain a word, by word. */
  private readonly frequencies = new LRUCache<string, number>({ max: KNOWN_WORDS });

  constructor(index: IndexFile) {
    this.index = index;
  }

  async search(query: string, count: number): Promise<readonly SearchHit[]> {
    const match = this.matchOf(checkedQuery(query));
    if (match === null) return [];
    const found = this.index.rows<{ passage: number; cost: number }>(MATCH, match, count * PASSAGES_PER_DOCUMENT);
    const scored = found.map(({ passage, cost }) => ({ passage, score: -cost }));
    return hitsOf(this.index, scored, query, count);
  }

  document(id: string): StoredDocument | null {
    return this.index.document(id);
  }

  /**
   * Returns the query in the syntax of FTS5; `null` when the index has none of the words. BM25 scores every passage that matches. To limit
   * their number, a passage must contain one of the rarer words. The other words raise its score but need not occur.
   */
  private matchOf(query: string): string | null {
    const words = queryWords(query)
      .map((word) => ({ word, frequency: this.frequencyOf(word) }))
      .filter(({ frequency }) => frequency > 0)
      .sort((a, b) => a.frequency - b.frequency);
    const isRare = countedUp(words, SCORED_PASSAGES);
    const rare = words.filter((_, index) => isRare[index]);
    const others = words.filter(
      ({ frequency }, index) => !isRare[index] && frequency < FREQUENT_SHARE * this.index.passageCount,
    );
    if (rare.length === 0) return null;
    const [required, optional] = [rare, others].map((some) => some.map(({ word }) => ftsString(word)).join(' OR '));
    // FTS5 has no optional words, but it adds the scores of all words in a query. Every word is therefore in the query twice, so that all
    // words keep the same weight.
    return optional === '' ? `${required}` : `(${required}) AND (${required} OR ${optional} OR ${optional})`;
  }

  private frequencyOf(word: string): number {
    const known = this.frequencies.get(word);
    if (known !== undefined) return known;
    const [row] = this.index.rows<{ count: number }>(
      'select count(*) as count from words where words match ?',
      ftsString(word),
    );
    const count = row?.count ?? 0;
    this.frequencies.set(word, count);
    return count;
  }
}

/**
 * Returns for each word whether the words up to it occur in at most `limit` passages together. `words` begin with the rarest word, for which
 * the result is always true.
 */
function countedUp(words: readonly { readonly frequency: number }[], limit: number): boolean[] {
  let total = 0;
  return words.map(({ frequency }, index) => {
    total += frequency;
    return index === 0 || total <= limit;
  });
}

/** Returns the query. Throws `bad_request` when the query is too long or has no words. */
export function checkedQuery(query: string): string {
  if (query.length > MAX_QUERY_CHARS) {
    throw new FloeError(
      'bad_request',
      `the query has ${query.length} characters; at most ${MAX_QUERY_CHARS} are searched`,
    );
  }
  if (queryWords(query).length === 0) throw new FloeError('bad_request', 'the query has no words');
  return query;
}

/** Returns the best passage of each document as a hit. `found` has the best passages first. */
export function hitsOf(
  index: IndexFile,
  found: readonly { readonly passage: number; readonly score: number }[],
  query: string,
  count: number,
): readonly SearchHit[] {
  const hits = new Map<string, SearchHit>();
  for (const { passage, score } of found) {
    if (hits.size === count) break;
    const { id, title, url, text } = index.passage(passage);
    if (!hits.has(id)) hits.set(id, { id, title, url, snippet: snippetOf(text, query), score });
  }
  return [...hits.values()];
}

/** Returns a word as a string of FTS5, in which no character is an operator. */
function ftsString(word: string): string {
  return `"${word.replaceAll('"', '""')}"`;
}
