import type { MeasureKind } from '@floe-rl/core/schema';
import { type RawBuilder, sql } from 'kysely';
import type {
  FactFilter,
  FactGroupColumn,
  FactGroupRow,
  FactNumberColumn,
  FactOrder,
  FactPosition,
  FactRow,
  FactSpread,
  FactSums,
  FactTable,
  FactTotals,
  MeasureSums,
  NewFactRow,
} from '../facts.ts';
import { AD_HOC, type QueryBuilder, type SqlFlavor } from './database.ts';
import { all, groupExpression, inOrder, isAfter, isInTotals, matches } from './fact-filter.ts';
import { foldFacts } from './fact-folding.ts';
import { MeasureSumming, measuresOfFacts, measuresOfTotals, measuresText } from './fact-measures.ts';
import { FOLDED, keyName, keysOf, namesOf, partsOf, SUMMED, SUMMED_NAMES, USABLE } from './fact-totals.ts';

/** Columns of a fact, without its number and its measures. */
const COLUMNS = [
  'session_id',
  'task_id',
  'sample_index',
  'trainer',
  'harness',
  'agent',
  'source',
  'split',
  'outcome',
  'unusable',
  'reward',
  'version',
  'first_version',
  'dialect',
  'engine',
  'node_id',
  'attempt',
  'turns',
  'completions',
  'sampled_tokens',
  'trained_tokens',
  'traces',
  'queued_ms',
  'init_ms',
  'ready_ms',
  'running_ms',
  'postrun_ms',
  'total_ms',
  'engine_ms',
  'sandbox_ms',
  'ended_ms',
] as const satisfies readonly Exclude<keyof NewFactRow, 'measures'>[];

const SUM_NAMES = [...SUMMED_NAMES, 'usable'] as const;

export class SqlFacts implements FactTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async add(row: NewFactRow, words = ''): Promise<void> {
    // The transaction that assigns a number to a fact holds the cursor lock until it ends, like a transaction that assigns a cursor to a
    // result.
    const values = [...COLUMNS.map((column) => row[column]), measuresText(row.measures)];
    await sql`
      with turn as (select ${this.flavor.cursorLock} as mine)
      insert into session_facts (${namesOf([...COLUMNS, 'measures'])})
      select ${sql.join(values)} from turn where mine`.execute(this.db);
    if (words !== '') await this.flavor.addWords(row.session_id, words).execute(this.db);
  }

  /** Returns the condition of a filter, including its phrases. */
  private selects(filter: FactFilter, alias = 'session_facts'): RawBuilder<boolean> {
    const { phrases } = filter;
    if (phrases === undefined) return matches(filter, alias);
    const hasWords = sql<boolean>`${sql.ref(`${alias}.fact_no`)} in ${this.flavor.factsWith(phrases)}`;
    return all([matches(filter, alias), hasWords]);
  }

  async list(filter: FactFilter, order: FactOrder, after: FactPosition | null, limit: number): Promise<FactRow[]> {
    const condition = all([this.selects(filter), ...(after === null ? [] : [isAfter(order, after)])]);
    const { rows } = await sql<FactRow>`
      select fact_no, ${namesOf(COLUMNS)} from session_facts where ${condition} order by ${inOrder(order)} limit ${limit} ${AD_HOC}`.execute(
      this.db,
    );
    return rows;
  }

  firstVersions(taskIds: readonly string[]): Promise<Pick<FactRow, 'task_id' | 'first_version'>[]> {
    return this.db
      .selectFrom('session_facts')
      .select(['task_id', 'first_version'])
      .where('task_id', 'in', this.flavor.texts(taskIds))
      .where('unusable', 'is', null)
      .orderBy('fact_no')
      .execute();
  }

  async count(filter: FactFilter, maxRead: number): Promise<number | null> {
    if (isInTotals(filter, [])) return (await this.totals(filter, [], 1))[0]?.sessions ?? 0;
    const isOfTasks = filter.values.task_id !== undefined;
    if (!isOfTasks && (await this.numberSpan()) > maxRead) return null;
    const { rows } = await sql<{ count: number }>`
      select count(*) as count from session_facts where ${this.selects(filter)} ${AD_HOC}`.execute(this.db);
    return Number(rows[0]?.count ?? 0);
  }

  /** Returns an upper bound of the number of facts. The query reads only the ends of an index. */
  private async numberSpan(): Promise<number> {
    const { rows } = await sql<{ span: number }>`
      select coalesce(max(fact_no) - min(fact_no) + 1, 0) as span from session_facts`.execute(this.db);
    return Number(rows[0]?.span ?? 0);
  }

  async totals(filter: FactFilter, by: readonly FactGroupColumn[], limit: number): Promise<FactTotals[]> {
    const source = isInTotals(filter, by) ? this.fromTotals(filter, by) : fromFacts(by, this.selects(filter));
    const keys = by.map((_, i) => sql.ref(keyName(i)));
    const sums = SUM_NAMES.map((name) => sql`coalesce(sum(${sql.ref(name)}), 0) as ${sql.ref(name)}`);
    const grouping = keys.length === 0 ? sql`` : sql`group by ${sql.join(keys)}`;
    const { rows } = await sql<Record<string, string | number | null>>`
      select ${sql.join([...keys, ...sums])} from (${source}) as parts ${grouping}
      having sum(sessions) > 0 limit ${limit} ${AD_HOC}`.execute(this.db);
    return rows.map((row) => totalsOf(row, by)).sort(byKeys(by));
  }

  /** Returns SQL for the sums that a filter selects: rows of the totals, and sums of the facts that are not part of the totals. */
  private fromTotals(filter: FactFilter, by: readonly FactGroupColumn[]): RawBuilder<unknown> {
    const keys = by.map((name, i) => sql`${sql.ref(name)} as ${sql.ref(keyName(i))}`);
    const sums = SUM_NAMES.map((name) =>
      name === 'usable' ? sql`usable * sessions as usable` : sql`${sql.ref(name)}`,
    );
    const { totals, facts } = partsOf(filter);
    const ofTotals = sql`select ${sql.join([...keys, ...sums])} from session_totals where ${totals}`;
    const parts = [...(totals === null ? [] : [ofTotals]), ...facts.map((condition) => fromFacts(by, condition))];
    return sql.join(parts, sql` union all `);
  }

  async measures(
    filter: FactFilter,
    kinds: readonly MeasureKind[],
    by: readonly FactGroupColumn[],
    maxRead: number,
  ): Promise<MeasureSums> {
    const sums = new MeasureSumming(kinds, by);
    const read = (source: RawBuilder<unknown>) =>
      sql<Record<string, string | number | null>>`${source} ${AD_HOC}`.execute(this.db);
    if (!isInTotals(filter, by)) {
      const newest = sql`${measuresOfFacts(by, this.selects(filter))} order by fact_no desc limit ${maxRead + 1}`;
      const { rows } = await read(newest);
      sums.addFacts(rows.slice(0, maxRead));
      return { measures: sums.all(), isPartial: rows.length > maxRead };
    }
    const { totals, facts } = partsOf(filter);
    if (totals !== null) sums.addTotals((await read(measuresOfTotals(kinds, by, totals))).rows);
    for (const condition of facts) sums.addFacts((await read(measuresOfFacts(by, condition))).rows);
    return { measures: sums.all(), isPartial: false };
  }

  async spread(filter: FactFilter, column: FactNumberColumn): Promise<FactSpread> {
    const value = sql.ref(column);
    const { rows } = await sql<{ min: number | null; max: number | null; valued: number; facts: number }>`
      select min(${value}) as min, max(${value}) as max, count(${value}) as valued, count(*) as facts
      from session_facts where ${this.selects(filter)} ${AD_HOC}`.execute(this.db);
    const { min = null, max = null, valued = 0, facts = 0 } = rows[0] ?? {};
    return { min, max, valued: Number(valued), without: Number(facts) - Number(valued) };
  }

  async histogram(
    filter: FactFilter,
    column: FactNumberColumn,
    { from, width, bins }: { readonly from: number; readonly width: number; readonly bins: number },
  ): Promise<number[]> {
    const value = sql.ref(column);
    const { rows } = await sql<{ bin: number; facts: number }>`
      select bin, count(*) as facts from (
        select floor((${value} - ${sql.lit(from)}) / ${sql.lit(width)}) as bin
        from session_facts where ${all([this.selects(filter), sql`${value} is not null`])}
      ) as binned group by bin ${AD_HOC}`.execute(this.db);
    const counts = new Array<number>(bins).fill(0);
    for (const { bin, facts } of rows) {
      const index = Math.min(Math.max(Number(bin), 0), bins - 1);
      counts[index] = (counts[index] ?? 0) + Number(facts);
    }
    return counts;
  }

  async groups(filter: FactFilter, before: number | null, limit: number): Promise<FactGroupRow[]> {
    const position = before === null ? [] : [sql<boolean>`fact.fact_no < ${before}`];
    // The facts are read newest first, and the first fact of each task is taken. The cost of a page therefore does not depend on the number of
    // older facts.
    const newest = await sql<{ task_id: string }>`
      select fact.task_id from session_facts as fact
      where ${all([this.selects(filter, 'fact'), ...position])} and not exists (
        select 1 from session_facts as newer
        where newer.task_id = fact.task_id and newer.fact_no > fact.fact_no and ${this.selects(filter, 'newer')}
      )
      order by fact.fact_no desc limit ${limit} ${AD_HOC}`.execute(this.db);
    const ids = this.flavor.texts(newest.rows.map((row) => row.task_id));
    const { rows } = await sql<FactGroupRow>`
      select task_id, max(fact_no) as fact_no, max(trainer) as trainer, max(harness) as harness, max(source) as source,
        max(ended_ms) as ended_ms, count(*) as sessions, sum(${USABLE}) as usable, count(reward) as rewards,
        coalesce(sum(reward), 0) as reward_sum, min(reward) as reward_min, max(reward) as reward_max,
        min(case when unusable is null then reward end) as usable_reward_min,
        max(case when unusable is null then reward end) as usable_reward_max
      from session_facts where task_id in ${ids} and ${this.selects(filter)} group by task_id ${AD_HOC}`.execute(
      this.db,
    );
    const counted = rows.map((row) => ({
      ...row,
      sessions: Number(row.sessions),
      usable: Number(row.usable),
      rewards: Number(row.rewards),
    }));
    return counted.sort((a, b) => b.fact_no - a.fact_no);
  }

  async unfolded(limit: number): Promise<number> {
    const { rows } = await sql<{ facts: number }>`
      select count(*) as facts from (
        select 1 from session_facts where fact_no > ${FOLDED} limit ${limit}
      ) as unfolded`.execute(this.db);
    return Number(rows[0]?.facts ?? 0);
  }

  fold(limit: number): Promise<number> {
    return foldFacts(this.db, this.flavor, limit);
  }
}

/** Returns SQL for the facts that a condition selects, with the columns to group by and the values to sum. */
function fromFacts(by: readonly FactGroupColumn[], condition: RawBuilder<boolean>): RawBuilder<unknown> {
  const keys = by.map((name, i) => sql`${groupExpression(name)} as ${sql.ref(keyName(i))}`);
  const sums = SUM_NAMES.map((name) => {
    const value = name === 'usable' ? USABLE : sql.raw(SUMMED[name]);
    return sql`${value} as ${sql.ref(name)}`;
  });
  return sql`select ${sql.join([...keys, ...sums])} from session_facts where ${condition}`;
}

/** Converts a row of sums. An empty text in a column that the sums are grouped by stands for no value. */
function totalsOf(row: Readonly<Record<string, string | number | null>>, by: readonly FactGroupColumn[]): FactTotals {
  const sums = SUM_NAMES.map((name) => [name, Number(row[name])] as const);
  return { by: keysOf(row, by), ...(Object.fromEntries(sums) as FactSums) };
}

/** Compares totals by the columns that they are grouped by, one after the other. `null` comes last. */
function byKeys(by: readonly FactGroupColumn[]): (a: FactTotals, b: FactTotals) => number {
  return (a, b) => {
    for (const name of by) {
      const [one = null, other = null] = [a.by[name], b.by[name]];
      if (one === other) continue;
      if (one === null || other === null) return one === null ? 1 : -1;
      return one < other ? -1 : 1;
    }
    return 0;
  };
}
