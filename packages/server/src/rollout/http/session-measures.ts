import { middleOfTimeInterval, type SessionMeasure } from '@floe-rl/core/schema';
import type { MeasureTotals } from '../../store/index.ts';

/** The sums of one measure with one combination of values, over all bins. */
type Gathered = { readonly by: SessionMeasure['by']; readonly rows: MeasureTotals[] };

/**
 * Returns the sums of measures as the API shows them, one for each name and combination of values. `shownBy` returns the values of the
 * requested fields.
 */
export function shownMeasures(
  totals: readonly MeasureTotals[],
  shownBy: (totals: MeasureTotals) => SessionMeasure['by'],
): SessionMeasure[] {
  const gathered = new Map<string, Gathered>();
  for (const row of totals) {
    const by = shownBy(row);
    const key = JSON.stringify([Object.values(by), row.kind, row.name]);
    const known = gathered.get(key) ?? { by, rows: [] };
    gathered.set(key, known);
    known.rows.push(row);
  }
  return [...gathered.values()].map(shown).sort(inOrder);
}

function shown({ by, rows }: Gathered): SessionMeasure {
  const { kind = 'link', name = '' } = rows[0] ?? {};
  const total = (field: 'count' | 'failures' | 'sum' | 'square_sum'): number =>
    rows.reduce((sum, row) => sum + row[field], 0);
  return {
    by,
    of: kind,
    name,
    count: total('count'),
    failures: total('failures'),
    mean: null,
    deviation: null,
    p50: null,
    p95: null,
    ...(kind === 'tool' ? timesOf(rows, total('sum')) : {}),
    ...(kind === 'reward' ? spreadOf(total('count'), total('sum'), total('square_sum')) : {}),
  };
}

function timesOf(rows: readonly MeasureTotals[], totalMs: number): Pick<SessionMeasure, 'mean' | 'p50' | 'p95'> {
  const timed = rows.filter(({ bin, count }) => bin >= 0 && count > 0).sort((a, b) => a.bin - b.bin);
  const answered = timed.reduce((sum, { count }) => sum + count, 0);
  const quantile = (share: number): number | null => {
    let left = share * answered;
    const found = timed.find(({ count }) => {
      left -= count;
      return left <= 0;
    });
    return found === undefined ? null : middleOfTimeInterval(found.bin) / 1000;
  };
  return { mean: answered === 0 ? null : totalMs / answered / 1000, p50: quantile(0.5), p95: quantile(0.95) };
}

function spreadOf(count: number, sum: number, squareSum: number): Pick<SessionMeasure, 'mean' | 'deviation'> {
  if (count === 0) return { mean: null, deviation: null };
  const mean = sum / count;
  // Rounding can make the difference of equal numbers negative.
  return { mean, deviation: Math.sqrt(Math.max(0, squareSum / count - mean ** 2)) };
}

function inOrder(a: SessionMeasure, b: SessionMeasure): number {
  const keys = (one: SessionMeasure): (string | null)[] => [...Object.values(one.by), one.of, one.name];
  const [first, second] = [keys(a), keys(b)];
  for (const [index, value] of first.entries()) {
    const other = second[index] ?? null;
    if (value === other) continue;
    if (value === null || other === null) return value === null ? 1 : -1;
    return value < other ? -1 : 1;
  }
  return 0;
}
