import type { MeasureKind } from '@floe-rl/core/schema';
import { type RawBuilder, sql } from 'kysely';
import type { FactGroupColumn, Measure, MeasureTotals } from '../facts.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';
import { all, groupExpression } from './fact-filter.ts';
import { keyExpression, keyName, keysOf, namesOf, TOTALS_KEY } from './fact-totals.ts';

/** The values that are summed over measures with the same kind, name and bin. */
const MEASURE_SUMS = ['count', 'failures', 'sum', 'square_sum'] as const satisfies readonly (keyof Measure)[];

const NAMES = ['kind', 'name', 'bin', ...MEASURE_SUMS] as const;

/** SQL for the parts of a measure in the column `measures`, in the order of {@link NAMES}. */
const PARTS = [
  sql`(entry.value ->> 0)`,
  sql`(entry.value ->> 1)`,
  sql`cast(entry.value ->> 2 as integer)`,
  sql`cast(entry.value ->> 3 as bigint)`,
  sql`cast(entry.value ->> 4 as bigint)`,
  sql`cast(entry.value ->> 5 as double precision)`,
  sql`cast(entry.value ->> 6 as double precision)`,
] as const;

/** A measure in the column `measures`: the values of {@link NAMES}. */
type StoredMeasure = [kind: MeasureKind, name: string, bin: number, ...amounts: number[]];

/** Returns the measures of a session as the text of the column `measures`. */
export function measuresText(measures: readonly Measure[]): string {
  return JSON.stringify(measures.map((measure) => NAMES.map((name) => measure[name])));
}

/** Returns SQL for the measures of the facts that a condition selects, as texts, with the columns to sum by. */
export function measuresOfFacts(by: readonly FactGroupColumn[], condition: RawBuilder<boolean>): RawBuilder<unknown> {
  const keys = by.map((name, i) => sql`${groupExpression(name)} as ${sql.ref(keyName(i))}`);
  return sql`select ${sql.join([...keys, sql`measures`])} from session_facts where ${condition}`;
}

/** Returns SQL for the sums of the measures in the rows of the totals that a condition selects, by some columns. */
export function measuresOfTotals(
  kinds: readonly MeasureKind[],
  by: readonly FactGroupColumn[],
  condition: RawBuilder<boolean>,
): RawBuilder<unknown> {
  const keys = by.map((name, i) => sql`${sql.ref(name)} as ${sql.ref(keyName(i))}`);
  const sums = MEASURE_SUMS.map((name) => sql`sum(${sql.ref(name)}) as ${sql.ref(name)}`);
  const names = ['kind', 'name', 'bin'].map((name) => sql.ref(name));
  return sql`
    select ${sql.join([...keys, ...names, ...sums])}
    from session_totals join session_measure_totals using (totals_no)
    where ${all([condition, sql`kind in (${sql.join(kinds)})`])}
    group by ${sql.join([...by.map((name) => sql.ref(name)), ...names])}`;
}

type Row = Readonly<Record<string, string | number | null>>;
type Sum = { -readonly [Name in keyof MeasureTotals]: MeasureTotals[Name] };

/**
 * Sums measures of some kinds by kind, name and bin, and by some columns. The texts of facts are parsed here, because the JSON functions of both
 * databases take several times as long.
 */
export class MeasureSumming {
  private readonly kinds: ReadonlySet<string>;
  private readonly by: readonly FactGroupColumn[];
  private readonly sums = new Map<string, Sum>();

  constructor(kinds: readonly MeasureKind[], by: readonly FactGroupColumn[]) {
    this.kinds = new Set(kinds);
    this.by = by;
  }

  addTotals(rows: readonly Row[]): void {
    for (const row of rows) this.add(row, this.prefixOf(row), NAMES.map((name) => row[name]) as StoredMeasure);
  }

  addFacts(rows: readonly Row[]): void {
    for (const row of rows) {
      const prefix = this.prefixOf(row);
      for (const measure of JSON.parse(String(row.measures)) as StoredMeasure[]) {
        if (this.kinds.has(measure[0])) this.add(row, prefix, measure);
      }
    }
  }

  all(): MeasureTotals[] {
    return [...this.sums.values()];
  }

  private prefixOf(row: Row): string {
    return JSON.stringify(this.by.map((_, i) => row[keyName(i)]));
  }

  private add(row: Row, prefix: string, [kind, name, bin, ...amounts]: StoredMeasure): void {
    const key = `${prefix} ${kind} ${bin} ${name}`;
    let sum = this.sums.get(key);
    if (sum === undefined) {
      const none = { count: 0, failures: 0, sum: 0, square_sum: 0 };
      sum = { by: keysOf(row, this.by), kind, name, bin: Number(bin), ...none };
      this.sums.set(key, sum);
    }
    for (const [i, field] of MEASURE_SUMS.entries()) sum[field] += Number(amounts[i]);
  }
}

/**
 * Adds the measures of the facts that a condition selects to the totals, or subtracts them. The rows of `session_totals` of these facts must
 * exist.
 */
export async function addMeasures(
  db: QueryBuilder,
  flavor: SqlFlavor,
  change: 'add' | 'subtract',
  condition: RawBuilder<boolean>,
): Promise<void> {
  const sign = change === 'add' ? sql`` : sql`-`;
  const keys = TOTALS_KEY.map((name, i) => sql`${keyExpression(name)} as ${sql.ref(keyName(i))}`);
  const parts = PARTS.map((part, i) => sql`${part} as ${sql.ref(NAMES[i] ?? '')}`);
  const isSame = all(TOTALS_KEY.map((name, i) => sql`totals.${sql.ref(name)} = parts.${sql.ref(keyName(i))}`));
  const sums = MEASURE_SUMS.map((name) => sql`${sign}sum(parts.${sql.ref(name)})`);
  const added = MEASURE_SUMS.map((name) => {
    const column = sql.ref(name);
    return sql`${column} = session_measure_totals.${column} + excluded.${column}`;
  });
  await sql`
    insert into session_measure_totals (totals_no, ${namesOf(NAMES)})
    select totals_no, kind, name, bin, ${sql.join(sums)}
    from (
      select ${sql.join([...keys, ...parts])}
      from session_facts, ${flavor.entries(sql.ref('session_facts.measures'))} where ${condition}
    ) as parts join session_totals as totals on ${isSame} where true
    group by totals_no, kind, name, bin
    on conflict (totals_no, kind, name, bin) do update set ${sql.join(added)}`.execute(db);
}
