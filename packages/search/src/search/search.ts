/** A document, or a passage of one, that matches a query. */
export type SearchHit = {
  /** Id of the document in the index; the URL for results of a web search. */
  readonly id: string;
  readonly title: string;
  /** `null` when the document has none. */
  readonly url: string | null;
  /** The part of the text that matches the query best. */
  readonly snippet: string;
  /** How well it matches; only comparable within one search, where a higher score is better. */
  readonly score: number;
};

/** A document of an index. */
export type StoredDocument = {
  readonly id: string;
  readonly title: string;
  readonly url: string | null;
  readonly text: string;
};

/** A way to search documents. */
export interface SearchBackend {
  /** Whether hits are documents whose text {@link SearchBackend.document} returns. */
  readonly hasDocuments: boolean;
  /**
   * Returns the best `count` documents, the best first; none when nothing matches. Rejects with `bad_request` for a query that cannot be
   * searched, with `peer_unreachable` when a service does not answer, or with the reason of `signal`.
   */
  search(query: string, count: number, signal: AbortSignal): Promise<readonly SearchHit[]>;
  /** Returns the document with this id, or with this URL; `null` when there is none. */
  document(id: string): StoredDocument | null;
}

/** Longest query in characters. */
export const MAX_QUERY_CHARS = 4_000;
