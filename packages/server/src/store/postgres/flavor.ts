import { sql } from 'kysely';
import type { SqlFlavor } from '../sql/database.ts';

/** First part of the keys of floe's PostgreSQL advisory locks: the text 'floe' in ASCII. Other programs are unlikely to use the same keys. */
export const LOCK_CLASS = 0x666c6f65;

/** First part of the keys of the advisory locks on task ids. It is the text 'flof' in ASCII. */
const TASK_LOCK_CLASS = LOCK_CLASS + 1;

export const SCHEMA_LOCK = 1;
const CURSOR_LOCK = 2;

export const POSTGRES_FLAVOR: SqlFlavor = {
  texts: (values) => sql<string>`(select unnest(${values}::text[]))`,
  pairs: (entries) => sql`
    (select key, value from unnest(${[...entries.keys()]}::text[], ${[...entries.values()]}::text[]) as one (key, value))`,
  entries: (column) => sql`jsonb_array_elements(${column}::jsonb) as entry (value)`,
  newSessions: (list) => sql`
    (select session_id, sample_index, ordinal
    from unnest(${list.map((one) => one.session_id)}::text[], ${list.map((one) => one.sample_index)}::integer[])
      with ordinality as one (session_id, sample_index, ordinal))`,
  progress: (reported) => sql`
    (select session_id, epoch, status, turns, sampled_tokens
    from unnest(${reported.map((one) => one.session_id)}::text[], ${reported.map((one) => one.epoch)}::integer[],
      ${reported.map((one) => one.status)}::text[], ${reported.map((one) => one.turns)}::integer[],
      ${reported.map((one) => one.sampled_tokens)}::bigint[])
      as one (session_id, epoch, status, turns, sampled_tokens))`,
  addWords: (sessionId, words) => sql`
    insert into session_words (fact_no, words)
    select fact_no, to_tsvector('simple', ${words}) from session_facts where session_id = ${sessionId}`,
  factsWith: (phrases) => {
    const parts = phrases.map((phrase) => sql`phraseto_tsquery('simple', ${phrase})`);
    return sql`(select fact_no from session_words where words @@ (${sql.join(parts, sql` && `)}))`;
  },
  wordsKey: 'fact_no',
  byTrainer: sql``,
  forUpdate: sql`for update`,
  skipLocked: sql`for update skip locked`,
  greatest: 'greatest',
  cursorLock: sql<boolean>`pg_advisory_xact_lock(${sql.lit(LOCK_CLASS)}, ${sql.lit(CURSOR_LOCK)}) is not null`,
  lastCursor: sql<number>`coalesce(pg_sequence_last_value(pg_get_serial_sequence('results', 'cursor')::regclass), 0)`,
  taskIdLock: (taskId) => sql`select pg_advisory_xact_lock(${sql.lit(TASK_LOCK_CLASS)}, hashtext(${taskId}))`,
};

/**
 * The SQL of transactions that only read. It contains no row locks: PostgreSQL does not allow them in such a transaction, and the
 * transaction's consistent snapshot makes them unnecessary.
 */
export const READ_FLAVOR: SqlFlavor = { ...POSTGRES_FLAVOR, forUpdate: sql``, skipLocked: sql``, taskIdLock: null };
