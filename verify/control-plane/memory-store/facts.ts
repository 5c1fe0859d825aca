import type {
  FactFilter,
  FactGroupColumn,
  FactNumberColumn,
  FactOrder,
  FactPosition,
  FactRow,
  FactTable,
  FactTextColumn,
  FactTotals,
  Measure,
  MeasureTotals,
} from '#server/store/facts';
import type { MemoryState, StoredFact } from './state.ts';

const HOUR_MS = 3_600_000;

/** The facts of ended sessions. Totals are computed from the facts, so there is nothing to fold. */
export function factsTable(state: MemoryState): FactTable {
  const { facts } = state;
  const matching = (filter: FactFilter): StoredFact[] => facts.where((row) => matches(row, filter));
  return {
    add: async (row, words = '') => {
      if (facts.get(row.session_id) !== undefined) throw new Error(`session ${row.session_id} already has facts`);
      facts.put(row.session_id, { fact_no: state.next('fact'), ...row, words });
    },
    list: async (filter, order, after, limit) => {
      const compare = inOrder(order);
      const rows = matching(filter)
        .sort(compare)
        .map(({ measures: _, words: __, ...row }) => row);
      const start = after === null ? 0 : rows.findIndex((row) => compare(positionOf(after, order), row) < 0);
      return start === -1 ? [] : rows.slice(start, start + limit);
    },
    firstVersions: async (taskIds) => {
      const filter = { values: { task_id: taskIds }, ranges: {}, usable: true, sinceMs: null, untilMs: null };
      return matching(filter).map(({ task_id, first_version }) => ({ task_id, first_version }));
    },
    count: async (filter) => matching(filter).length,
    totals: async (filter, by, limit) => {
      const groups = new Map<string, FactRow[]>();
      for (const row of matching(filter)) {
        const key = JSON.stringify(by.map((name) => keyOf(row, name)));
        const group = groups.get(key) ?? [];
        groups.set(key, group);
        group.push(row);
      }
      return [...groups.values()]
        .map((rows) => sumOf(rows, by))
        .sort(byKeys(by))
        .slice(0, limit);
    },
    measures: async (filter, kinds, by) => {
      const sums = new Map<string, MeasureTotals>();
      for (const row of matching(filter)) {
        for (const measure of row.measures) {
          if (!kinds.includes(measure.kind)) continue;
          const values = Object.fromEntries(by.map((name) => [name, keyOf(row, name)]));
          const key = JSON.stringify([Object.values(values), measure.kind, measure.name, measure.bin]);
          const sum = sums.get(key);
          sums.set(key, sum === undefined ? { ...measure, by: values } : added(sum, measure));
        }
      }
      return { measures: [...sums.values()], isPartial: false };
    },
    spread: async (filter, column) => {
      const rows = matching(filter);
      const values = valuesOf(rows, column);
      return {
        min: values.length === 0 ? null : Math.min(...values),
        max: values.length === 0 ? null : Math.max(...values),
        valued: values.length,
        without: rows.length - values.length,
      };
    },
    histogram: async (filter, column, { from, width, bins }) => {
      const counts = new Array<number>(bins).fill(0);
      for (const value of valuesOf(matching(filter), column)) {
        const bin = Math.min(Math.max(Math.floor((value - from) / width), 0), bins - 1);
        counts[bin] = (counts[bin] ?? 0) + 1;
      }
      return counts;
    },
    groups: async (filter, before, limit) => {
      const tasks = new Map<string, FactRow[]>();
      for (const row of matching(filter)) tasks.set(row.task_id, [...(tasks.get(row.task_id) ?? []), row]);
      return [...tasks.values()]
        .map(groupOf)
        .filter(({ fact_no }) => before === null || fact_no < before)
        .sort((a, b) => b.fact_no - a.fact_no)
        .slice(0, limit);
    },
    unfolded: async () => 0,
    fold: async () => 0,
  };
}

function matches(
  row: StoredFact,
  { values, ranges, usable, measures, phrases, sinceMs, untilMs }: FactFilter,
): boolean {
  const hasValues = (Object.keys(values) as FactTextColumn[]).every((name) => values[name]?.includes(row[name]));
  const isInRanges = (Object.keys(ranges) as FactNumberColumn[]).every((name) => {
    const { min, max } = ranges[name] ?? {};
    const value = row[name];
    if (min === undefined && max === undefined) return true;
    return value !== null && value >= (min ?? -Infinity) && value <= (max ?? Infinity);
  });
  return (
    hasValues &&
    isInRanges &&
    (usable === null || usable === (row.unusable === null)) &&
    (measures === undefined ||
      row.measures.some((one) => measures.some(({ kind, name }) => one.kind === kind && one.name === name))) &&
    (phrases ?? []).every((phrase) => ` ${row.words ?? ''} `.includes(` ${phrase} `)) &&
    (sinceMs === null || row.ended_ms >= sinceMs) &&
    (untilMs === null || row.ended_ms < untilMs)
  );
}

type Ordered = Pick<FactRow, 'fact_no' | FactNumberColumn>;

function inOrder({ by, descending }: FactOrder): (a: Ordered, b: Ordered) => number {
  const sign = descending ? -1 : 1;
  return (a, b) => {
    if (by === 'fact_no') return sign * (a.fact_no - b.fact_no);
    const [one, other] = [a[by], b[by]];
    if (one === other) return b.fact_no - a.fact_no;
    if (one === null || other === null) return one === null ? 1 : -1;
    return sign * (one - other);
  };
}

function positionOf({ factNo, value }: FactPosition, { by }: FactOrder): Ordered {
  const row = { fact_no: factNo, reward: null, turns: 0, sampled_tokens: 0, total_ms: null };
  return by === 'fact_no' ? row : { ...row, [by]: value };
}

function added(sum: MeasureTotals, measure: Measure): MeasureTotals {
  return {
    ...sum,
    count: sum.count + measure.count,
    failures: sum.failures + measure.failures,
    sum: sum.sum + measure.sum,
    square_sum: sum.square_sum + measure.square_sum,
  };
}

function valuesOf(rows: readonly FactRow[], column: FactNumberColumn): number[] {
  return rows.map((row) => row[column]).filter((value) => value !== null);
}

function keyOf(row: FactRow, name: FactGroupColumn): string | number | null {
  return name === 'hour_ms' ? row.ended_ms - (row.ended_ms % HOUR_MS) : row[name];
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function sumOf(rows: readonly FactRow[], by: readonly FactGroupColumn[]): FactTotals {
  const [first] = rows;
  const sum = (column: FactNumberColumn | 'trained_tokens' | 'engine_ms' | 'sandbox_ms'): number =>
    total(rows.map((row) => row[column] ?? 0));
  const rewards = valuesOf(rows, 'reward');
  const queued = rows.map((row) => row.queued_ms).filter((value) => value !== null);
  return {
    by: Object.fromEntries(first === undefined ? [] : by.map((name) => [name, keyOf(first, name)])),
    sessions: rows.length,
    usable: rows.filter((row) => row.unusable === null).length,
    rewards: rewards.length,
    reward_sum: total(rewards),
    reward_square_sum: total(rewards.map((reward) => reward * reward)),
    turns: sum('turns'),
    sampled_tokens: sum('sampled_tokens'),
    trained_tokens: sum('trained_tokens'),
    timed: valuesOf(rows, 'total_ms').length,
    total_ms: sum('total_ms'),
    queued: queued.length,
    queued_ms: total(queued),
    engine_ms: sum('engine_ms'),
    sandbox_ms: sum('sandbox_ms'),
  };
}

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

function groupOf(rows: readonly FactRow[]) {
  const newest = rows.reduce((a, b) => (a.fact_no > b.fact_no ? a : b));
  const rewards = valuesOf(rows, 'reward');
  const usable = rows.filter((row) => row.unusable === null);
  const usableRewards = valuesOf(usable, 'reward');
  const least = (values: readonly number[]): number | null => (values.length === 0 ? null : Math.min(...values));
  const greatest = (values: readonly number[]): number | null => (values.length === 0 ? null : Math.max(...values));
  return {
    fact_no: newest.fact_no,
    task_id: newest.task_id,
    trainer: newest.trainer,
    harness: newest.harness,
    source: newest.source,
    ended_ms: Math.max(...rows.map((row) => row.ended_ms)),
    sessions: rows.length,
    usable: usable.length,
    rewards: rewards.length,
    reward_sum: total(rewards),
    reward_min: least(rewards),
    reward_max: greatest(rewards),
    usable_reward_min: least(usableRewards),
    usable_reward_max: greatest(usableRewards),
  };
}
