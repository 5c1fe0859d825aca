import { type RawBuilder, sql } from 'kysely';
import { AD_HOC, type QueryBuilder, type SqlFlavor } from './database.ts';
import { all } from './fact-filter.ts';
import { addMeasures } from './fact-measures.ts';
import { keyExpression, keyName, namesOf, SUMMED, SUMMED_NAMES, TOTALS_KEY } from './fact-totals.ts';

/** Adds the oldest facts that are not part of the totals to them, at most `limit`. Resolves to the number of added facts. */
export async function foldFacts(db: QueryBuilder, flavor: SqlFlavor, limit: number): Promise<number> {
  const folded = await lockTotals(db, flavor);
  const { rows } = await sql<{ last: number | null; facts: number }>`
    select max(fact_no) as last, count(*) as facts from (
      select fact_no from session_facts where fact_no > ${folded} order by fact_no limit ${limit}
    ) as oldest`.execute(db);
  const { last = null, facts = 0 } = rows[0] ?? {};
  if (last === null) return 0;
  const added = sql<boolean>`fact_no > ${folded} and fact_no <= ${last}`;
  await addToTotals(db, 'add', added);
  await addMeasures(db, flavor, 'add', added);
  await db.updateTable('session_totals_state').set({ folded_no: last }).execute();
  return Number(facts);
}

/** Removes the facts of sessions. Facts that are part of the totals are also subtracted from the totals. */
export async function removeFacts(db: QueryBuilder, flavor: SqlFlavor, sessionIds: readonly string[]): Promise<void> {
  if (sessionIds.length === 0) return;
  const folded = await lockTotals(db, flavor);
  const isRemoved = sql<boolean>`session_id in ${flavor.texts(sessionIds)}`;
  const inTotals = all([isRemoved, sql`fact_no <= ${folded}`]);
  await addMeasures(db, flavor, 'subtract', inTotals);
  const changed = await addToTotals(db, 'subtract', inTotals);
  // Only the changed rows are checked, because reading all totals would take longer than everything else.
  if (changed.length > 0) {
    const rows = sql`totals_no in (${sql.join(changed.map((no) => sql.lit(no)))})`;
    await sql`
      delete from session_measure_totals where ${rows} and count = 0 and failures = 0 ${AD_HOC}`.execute(db);
    await sql`delete from session_totals where ${rows} and sessions = 0 ${AD_HOC}`.execute(db);
  }
  const facts = sql`(select fact_no from session_facts where ${isRemoved})`;
  await sql`delete from session_words where ${sql.ref(flavor.wordsKey)} in ${facts}`.execute(db);
  await sql`delete from session_facts where ${isRemoved}`.execute(db);
}

/**
 * Locks the totals until the transaction ends. Resolves to the number of the newest fact that is part of them. Transactions that add facts do
 * not need the lock.
 */
async function lockTotals(db: QueryBuilder, flavor: SqlFlavor): Promise<number> {
  const { rows } = await sql<{ folded_no: number }>`
    select folded_no from session_totals_state where id = 1 ${flavor.forUpdate}`.execute(db);
  return rows[0]?.folded_no ?? 0;
}

/** Adds the sums of the facts that a condition selects to the totals, or subtracts them. Resolves to the numbers of the changed rows. */
async function addToTotals(
  db: QueryBuilder,
  change: 'add' | 'subtract',
  condition: RawBuilder<boolean>,
): Promise<number[]> {
  const sign = change === 'add' ? sql`` : sql`-`;
  const keys = TOTALS_KEY.map((name, i) => sql`${keyExpression(name)} as ${sql.ref(keyName(i))}`);
  const sums = SUMMED_NAMES.map((name) => sql`${sign}sum(${sql.raw(SUMMED[name])})`);
  const added = SUMMED_NAMES.map((name) => {
    const column = sql.ref(name);
    return sql`${column} = session_totals.${column} + excluded.${column}`;
  });
  const { rows } = await sql<{ totals_no: number }>`
    insert into session_totals (${namesOf([...TOTALS_KEY, ...SUMMED_NAMES])})
    select ${sql.join([...keys, ...sums])} from session_facts where ${condition}
    group by ${sql.join(TOTALS_KEY.map((_, i) => sql.lit(i + 1)))}
    on conflict (${namesOf(TOTALS_KEY)}) do update set ${sql.join(added)}
    returning totals_no`.execute(db);
  return rows.map((row) => row.totals_no);
}
