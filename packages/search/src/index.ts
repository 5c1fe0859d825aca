/** The exports of `@floe-rl/search` for other packages. */
export { CodeIndexes } from './code-index/code-index.ts';
export type { CodeHit, CodeMatches, MatchKind } from './code-index/query.ts';
export { type BuildSummary, buildIndex } from './search/build.ts';
export { Embeddings } from './search/embeddings.ts';
export { openSearch } from './search/open.ts';
export type { SearchHit, StoredDocument } from './search/search.ts';
export { requireSource, searchServices } from './search/services.ts';
export { openWebPage } from './search/web-page.ts';
