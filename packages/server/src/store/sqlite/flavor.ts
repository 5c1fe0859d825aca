import { sql } from 'kysely';
import type { SqlFlavor } from '../sql/database.ts';

/** The SQL that is specific to SQLite. It contains no locks, because SQLite has only one writer at a time. */
export const SQLITE_FLAVOR: SqlFlavor = {
  texts: (values) => sql<string>`(select value from json_each(${JSON.stringify(values)}))`,
  pairs: (entries) => sql`(select key, value from json_each(${JSON.stringify(Object.fromEntries(entries))}))`,
  entries: (column) => sql`json_each(${column}) as entry`,
  newSessions: (list) => sql`
    (select value ->> 0 as session_id, value ->> 1 as sample_index, key as ordinal
    from json_each(${JSON.stringify(list.map((one) => [one.session_id, one.sample_index]))}))`,
  progress: (reported) => sql`
    (select value ->> 0 as session_id, value ->> 1 as epoch, value ->> 2 as status, value ->> 3 as turns,
      value ->> 4 as sampled_tokens
    from json_each(${JSON.stringify(reported.map((one) => [one.session_id, one.epoch, one.status, one.turns, one.sampled_tokens]))}))`,
  addWords: (sessionId, words) => sql`
    insert into session_words (rowid, words) select fact_no, ${words} from session_facts where session_id = ${sessionId}`,
  factsWith: (phrases) => {
    // Phrases have only letters, digits and spaces, so that none can end the quotes.
    const query = phrases.map((phrase) => `"${phrase}"`).join(' ');
    return sql`(select rowid from session_words where session_words match ${query})`;
  },
  wordsKey: 'rowid',
  // Names the index to use. Without statistics, the planner would use the index by status and sort the whole queue.
  byTrainer: sql`indexed by sessions_fifo`,
  forUpdate: sql``,
  skipLocked: sql``,
  greatest: 'max',
  cursorLock: sql<boolean>`true`,
  lastCursor: sql<number>`coalesce((select seq from sqlite_sequence where name = 'results'), 0)`,
  taskIdLock: null,
};
