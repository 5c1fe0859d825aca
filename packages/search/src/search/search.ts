/** A document that matches a query, or a passage of a document that matches. */
export type SearchHit = {
  /** Id of the document in the index; the URL for results of a web search. */
  readonly id: string;
  readonly title: string;
  /** URL of the document; `null` when it has none. */
  readonly url: string | null;
  /** The part of the text that matches the query best. */
  readonly snippet: string;
  /** How well the document matches. A higher score is better. Scores of different searches are not comparable. */
  readonly score: number;
};

/** A document of an index. */
export type StoredDocument = {
  readonly id: string;
  readonly title: string;
  readonly url: string | null;
  readonly text: string;
};

/** A backend that searches documents. */
export interface SearchBackend {
  /** Whether {@link SearchBackend.document} returns the text of the documents that are found. */
  readonly hasDocuments: boolean;
  /**
   * Returns the best `count` documents, the best first; an empty list when nothing matches. Rejects with `bad_request` for a query that cannot
   * be searched, with `peer_unreachable` when a service does not answer, or with the reason of `signal`.
   */
  search(query: string, count: number, signal: AbortSignal): Promise<readonly SearchHit[]>;
  /** Returns the document with this id, or with this URL; `null` when there is none. */
  document(id: string): StoredDocument | null;
}

/** Maximum number of characters of a query. */
export const MAX_QUERY_CHARS = 4_000;
