import { type RawBuilder, sql } from 'kysely';
import type { FactFilter, FactGroupColumn, FactSums, FactTotals } from '../facts.ts';
import { all, groupExpression, matches, matchesTotals, wholeHours } from './fact-filter.ts';

/** Columns whose values identify a row of the totals. */
export const TOTALS_KEY = [
  'hour_ms',
  'trainer',
  'harness',
  'source',
  'outcome',
  'version',
  'dialect',
  'engine',
  'usable',
] as const;

export const USABLE = sql.raw('case when unusable is null then 1 else 0 end');

/** The sums in a row of the totals. Each is a sum of the given expression over the facts with the row's key. */
export const SUMMED = {
  sessions: '1',
  rewards: 'case when reward is null then 0 else 1 end',
  reward_sum: 'coalesce(reward, 0)',
  reward_square_sum: 'coalesce(reward * reward, 0)',
  turns: 'turns',
  sampled_tokens: 'sampled_tokens',
  trained_tokens: 'trained_tokens',
  timed: 'case when total_ms is null then 0 else 1 end',
  total_ms: 'coalesce(total_ms, 0)',
  queued: 'case when queued_ms is null then 0 else 1 end',
  queued_ms: 'coalesce(queued_ms, 0)',
  engine_ms: 'coalesce(engine_ms, 0)',
  sandbox_ms: 'coalesce(sandbox_ms, 0)',
} as const satisfies Record<Exclude<keyof FactSums, 'usable'>, string>;

export const SUMMED_NAMES = Object.keys(SUMMED) as (keyof typeof SUMMED)[];

/** SQL for the number of the newest fact that is part of the totals. */
export const FOLDED = sql<number>`(select folded_no from session_totals_state where id = 1)`;

/** Returns SQL for the value that a column of the totals has for a fact. */
export function keyExpression(name: (typeof TOTALS_KEY)[number]): RawBuilder<unknown> {
  return name === 'usable' ? USABLE : groupExpression(name);
}

/**
 * Returns the name, in the result of a query, of a column that the sums are grouped by. The names of the columns of facts are not used,
 * because `usable` and `hour_ms` are no such columns.
 */
export function keyName(index: number): string {
  return `key_${index}`;
}

export function namesOf(columns: readonly string[]): RawBuilder<unknown> {
  return sql.join(columns.map((column) => sql.ref(column)));
}

/** Returns the values of the columns that the sums of a row are grouped by. */
export function keysOf(row: Readonly<Record<string, string | number | null>>, by: readonly FactGroupColumn[]) {
  const keys = by.map((name, i) => {
    const value = row[keyName(i)] ?? null;
    return [name, value === '' ? null : value] as const;
  });
  return Object.fromEntries(keys) as FactTotals['by'];
}

/**
 * Returns the conditions for reading the sums of a filter from the totals and the facts, without counting a fact twice. `totals` selects the
 * totals of whole hours; `null` when the filter contains no whole hour. `facts` select the newest facts, which are not part of the totals yet,
 * and the facts of hours that the filter selects only in part. All of them must be read in one transaction, so that they see the same state of
 * the database.
 */
export function partsOf(filter: FactFilter): {
  readonly totals: RawBuilder<boolean> | null;
  readonly facts: readonly RawBuilder<boolean>[];
} {
  const { fromMs, toMs } = wholeHours(filter);
  const where = (...conditions: RawBuilder<boolean>[]) => all([matches(filter), ...conditions]);
  if (fromMs !== null && toMs !== null && fromMs >= toMs) return { totals: null, facts: [where()] };
  const facts = [where(sql`fact_no > ${FOLDED}`)];
  if (fromMs !== null) facts.push(where(sql`fact_no <= ${FOLDED}`, sql`ended_ms < ${fromMs}`));
  if (toMs !== null) facts.push(where(sql`fact_no <= ${FOLDED}`, sql`ended_ms >= ${toMs}`));
  return { totals: matchesTotals(filter, { fromMs, toMs }), facts };
}
