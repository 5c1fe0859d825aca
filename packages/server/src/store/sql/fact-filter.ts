import { type RawBuilder, sql } from 'kysely';
import type {
  FactFilter,
  FactGroupColumn,
  FactNumberColumn,
  FactOrder,
  FactPosition,
  FactTextColumn,
} from '../facts.ts';

/** Milliseconds of an hour. The totals of facts are kept by the hour of their end. */
const HOUR_MS = 3_600_000;

/** SQL for the hour in which a session ended, as the Unix time in milliseconds at which the hour began. */
const HOUR = sql`(ended_ms - ended_ms % ${sql.lit(HOUR_MS)})`;

/** The columns of the totals, without the hour. A filter that needs only these columns can be answered from the totals. */
const TOTALS_COLUMNS: ReadonlySet<string> = new Set([
  'hour_ms',
  'trainer',
  'harness',
  'source',
  'outcome',
  'version',
  'dialect',
  'engine',
]);

/**
 * Columns that have an empty text in the totals where the facts have no value. A `null` could occur several times under one key, because it
 * equals no other `null`.
 */
const NEVER_NULL_IN_TOTALS: ReadonlySet<string> = new Set(['source', 'version', 'dialect', 'engine']);

const TRUE = sql<boolean>`1 = 1`;

/** Joins conditions with `and`. */
export function all(conditions: readonly RawBuilder<boolean>[]): RawBuilder<boolean> {
  return conditions.length === 0 ? TRUE : sql<boolean>`${sql.join(conditions, sql` and `)}`;
}

/** Returns the condition of a filter on rows of `session_facts`, without its phrases. `alias` is the name of the table in the statement. */
export function matches(filter: FactFilter, alias = 'session_facts'): RawBuilder<boolean> {
  const { values, ranges, usable, measures, sinceMs, untilMs } = filter;
  const column = (name: string) => sql.ref(`${alias}.${name}`);
  const conditions: RawBuilder<boolean>[] = [];
  for (const [name, wanted] of Object.entries(values)) conditions.push(isOneOf(column(name), wanted));
  for (const [name, { min, max }] of Object.entries(ranges)) {
    if (min !== undefined) conditions.push(sql`${column(name)} >= ${min}`);
    if (max !== undefined) conditions.push(sql`${column(name)} <= ${max}`);
  }
  if (usable !== null)
    conditions.push(usable ? sql`${column('unusable')} is null` : sql`${column('unusable')} is not null`);
  if (measures !== undefined) conditions.push(hasMeasure(column('measures'), measures));
  if (sinceMs !== null) conditions.push(sql`${column('ended_ms')} >= ${sinceMs}`);
  if (untilMs !== null) conditions.push(sql`${column('ended_ms')} < ${untilMs}`);
  return all(conditions);
}

/** Returns the condition that the text of a fact's measures contains a measure with a kind and a name of the list. */
function hasMeasure(column: RawBuilder<unknown>, wanted: NonNullable<FactFilter['measures']>): RawBuilder<boolean> {
  const texts = wanted.map(({ kind, name }) => `${JSON.stringify([kind, name]).slice(0, -1)},`);
  const conditions = texts.map((text) => sql<boolean>`replace(${column}, ${text}, '') <> ${column}`);
  return sql<boolean>`(${sql.join(conditions, sql` or `)})`;
}

function isOneOf(column: RawBuilder<unknown>, wanted: readonly (string | null)[]): RawBuilder<boolean> {
  const texts = wanted.filter((value) => value !== null);
  const isNull = sql<boolean>`${column} is null`;
  if (texts.length === 0) return isNull;
  const isText = sql<boolean>`${column} in (${sql.join(texts)})`;
  return texts.length === wanted.length ? isText : sql<boolean>`(${isText} or ${isNull})`;
}

/** Whether the totals have all columns that are needed for a filter and for the columns to group by. */
export function isInTotals({ values, ranges, measures, phrases }: FactFilter, by: readonly FactGroupColumn[]): boolean {
  const columns = [...Object.keys(values), ...by];
  if (measures !== undefined || phrases !== undefined || Object.keys(ranges).length > 0) return false;
  return columns.every((name) => TOTALS_COLUMNS.has(name));
}

/** The range of whole hours in a time range. `null` for an end that is open. */
export type HourRange = { readonly fromMs: number | null; readonly toMs: number | null };

/** Returns the whole hours between the limits of a filter. `toMs` is below `fromMs` when both limits are in one hour. */
export function wholeHours({ sinceMs, untilMs }: FactFilter): HourRange {
  return {
    fromMs: sinceMs === null ? null : Math.ceil(sinceMs / HOUR_MS) * HOUR_MS,
    toMs: untilMs === null ? null : Math.floor(untilMs / HOUR_MS) * HOUR_MS,
  };
}

/** Returns the condition of a filter on rows of `session_totals`, with the given hours instead of its times. */
export function matchesTotals({ values, usable }: FactFilter, { fromMs, toMs }: HourRange): RawBuilder<boolean> {
  const conditions: RawBuilder<boolean>[] = [];
  for (const [name, wanted] of Object.entries(values)) {
    const stored = NEVER_NULL_IN_TOTALS.has(name) ? wanted.map((value) => value ?? '') : wanted;
    conditions.push(isOneOf(sql.ref(name), stored));
  }
  if (usable !== null) conditions.push(sql`usable = ${sql.lit(usable ? 1 : 0)}`);
  if (fromMs !== null) conditions.push(sql`hour_ms >= ${fromMs}`);
  if (toMs !== null) conditions.push(sql`hour_ms < ${toMs}`);
  return all(conditions);
}

/** Returns the SQL for a column that facts are grouped by. Its value for a fact equals the value in the totals that have this fact. */
export function groupExpression(name: FactGroupColumn | FactTextColumn): RawBuilder<unknown> {
  if (name === 'hour_ms') return HOUR;
  return NEVER_NULL_IN_TOTALS.has(name) ? sql`coalesce(${sql.ref(name)}, '')` : sql.ref(name);
}

/** Returns the SQL after `order by`. A `case` puts rows without a value last in both databases. */
export function inOrder({ by, descending }: FactOrder): RawBuilder<unknown> {
  const direction = descending ? sql`desc` : sql`asc`;
  if (by === 'fact_no') return sql`fact_no ${direction}`;
  const column = sql.ref(by);
  return sql`case when ${column} is null then 1 else 0 end, ${column} ${direction}, fact_no desc`;
}

/** Returns the condition for the rows that come after a position in an order. */
export function isAfter({ by, descending }: FactOrder, { factNo, value }: FactPosition): RawBuilder<boolean> {
  if (by === 'fact_no') return descending ? sql`fact_no < ${factNo}` : sql`fact_no > ${factNo}`;
  const column = sql.ref(by satisfies FactNumberColumn);
  if (value === null) return sql`(${column} is null and fact_no < ${factNo})`;
  const further = descending ? sql`${column} < ${value}` : sql`${column} > ${value}`;
  return sql`(${further} or (${column} = ${value} and fact_no < ${factNo}) or ${column} is null)`;
}
