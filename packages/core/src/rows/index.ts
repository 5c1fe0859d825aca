/** What other packages use of `@floe-rl/core/rows`. */
export { allRows, episodeRow, firstRows, groupCount } from './episode-rows.ts';
export { type BadRow, invalidRow, type Row, readAllRows, readRows } from './row-file.ts';
