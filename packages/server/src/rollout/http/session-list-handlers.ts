import { FloeError } from '@floe-rl/core';
import type { GroupFacts, SessionFacts, SessionGrouping, SessionHistogram, SessionTotals } from '@floe-rl/core/schema';
import { z } from 'zod';
import type {
  FactFilter,
  FactGroupColumn,
  FactGroupRow,
  FactPosition,
  FactRow,
  FactSpread,
  FactTotals,
  StoreTables,
} from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import type { Handlers } from './handler.ts';
import {
  filterOf,
  NUMBER_FIELDS,
  type NumberFieldName,
  ORDERS,
  type OrderName,
  type SessionFilterQuery,
  VALUE_COLUMNS,
} from './session-filter.ts';
import { shownMeasures } from './session-measures.ts';

/** Maximum number of facts that are read to count the matches of a filter. When more would have to be read, the total of a list is `null`. */
const MAX_COUNTED = 200_000;
/** Maximum number of sums in one reply. */
const MAX_SUMS = 10_000;
/** Maximum number of sums of measures that are read for one reply. A tool has one sum for each interval of its times. */
const MAX_MEASURES = 50_000;
/** Maximum number of facts whose measures are read when the totals do not have them. Reading this many takes about 50 ms. */
const MAX_MEASURED = 5_000;
/** First part of a position in a list of groups. In all other lists, the first part is the name of the list's order. */
const GROUPS = 'groups';

/** A position in a list: the order of the list, and the value and number of the last fact before the position. */
const positionSchema = z.tuple([z.string(), z.number().nullable(), z.int().min(0)]);

/** Creates the handlers of the routes that list and sum ended sessions. */
export function sessionListHandlers(
  context: RolloutContext,
): Handlers<'listEndedSessions' | 'sumSessions' | 'measureSessions' | 'sessionHistogram' | 'listGroups'> {
  const selected = (query: SessionFilterQuery): FactFilter => {
    if (query.text !== undefined && context.config.search_kb === 0) {
      throw new FloeError('unsupported', 'this server does not index messages: set search_kb in its configuration');
    }
    return filterOf(query);
  };
  return {
    listEndedSessions: ({ query }) => {
      const filter = selected(query);
      const after = query.after === undefined ? null : positionOf(query.after, query.order);
      const order = ORDERS[query.order];
      return context.store.read(async ({ facts }) => {
        const rows = await facts.list(filter, order, after, query.limit + 1);
        const page = rows.slice(0, query.limit);
        const [last, isLast] = [page.at(-1), rows.length === page.length];
        const value = last === undefined || order.by === 'fact_no' ? null : last[order.by];
        const next = last === undefined || isLast ? null : encoded(query.order, value, last.fact_no);
        const reply = { sessions: page.map(shown), next };
        if (after !== null) return { ...reply, total: null };
        return { ...reply, total: isLast ? page.length : await facts.count(filter, MAX_COUNTED) };
      });
    },
    sumSessions: ({ query }) => {
      const filter = selected(query);
      const by = query.by ?? [];
      return context.store.read(async (tables) => {
        const totals = await tables.facts.totals(filter, by.map(columnOf), MAX_SUMS + 1);
        if (totals.length > MAX_SUMS) throw await tooManySums(tables, filter, by);
        return { groups: totals.map((one) => shownTotals(one, by)) };
      });
    },
    measureSessions: ({ query }) => {
      const filter = selected(query);
      const by = query.by ?? [];
      return context.store.read(async ({ facts }) => {
        const { measures, isPartial } = await facts.measures(filter, query.of, by.map(columnOf), MAX_MEASURED);
        if (measures.length > MAX_MEASURES) throw queryError('by', 'has too many combinations of values; filter them');
        const newest = isPartial ? MAX_MEASURED : null;
        return { measures: shownMeasures(measures, (one) => shownBy(one, by)), newest };
      });
    },
    sessionHistogram: ({ query }) => {
      const filter = selected(query);
      const { of, bins } = query;
      return context.store.read(async ({ facts }): Promise<SessionHistogram> => {
        const { column, scale } = NUMBER_FIELDS[of];
        const spread = await facts.spread(filter, column);
        const intervals = intervalsOf(of, spread, bins);
        if (intervals === null) return { of, bins: [], without: spread.without };
        const counts = await facts.histogram(filter, column, intervals);
        const edge = (i: number): number => (intervals.from + i * intervals.width) / scale;
        const shownBins = counts.map((sessions, i) => ({ from: edge(i), to: edge(i + 1), sessions }));
        return { of, bins: shownBins, without: spread.without };
      });
    },
    listGroups: ({ query }) => {
      const filter = selected(query);
      const before = query.after === undefined ? null : positionOf(query.after, GROUPS).factNo;
      return context.store.read(async ({ facts }) => {
        const rows = await facts.groups(filter, before, query.limit + 1);
        const page = rows.slice(0, query.limit);
        const last = page.at(-1);
        const next = last === undefined || rows.length === page.length ? null : encoded(GROUPS, null, last.fact_no);
        return { groups: page.map(shownGroup), next };
      });
    },
  };
}

function shown({ fact_no: _, ...facts }: FactRow): SessionFacts {
  return { ...facts, ended_at: new Date(facts.ended_ms).toISOString() };
}

function encoded(order: OrderName | typeof GROUPS, value: number | null, factNo: number): string {
  return Buffer.from(JSON.stringify([order, value, factNo])).toString('base64url');
}

/**
 * Returns the position that `after` encodes. Throws `schema_violation` when `after` is no position, or when it is a position in a list with
 * another order.
 */
function positionOf(after: string, order: OrderName | typeof GROUPS): FactPosition {
  let decoded: unknown;
  try {
    decoded = JSON.parse(Buffer.from(after, 'base64url').toString());
  } catch {
    throw queryError('after', 'is not `next` of an earlier page');
  }
  const position = positionSchema.safeParse(decoded);
  if (!position.success) throw queryError('after', 'is not `next` of an earlier page');
  const [madeFor, value, factNo] = position.data;
  if (madeFor !== order) throw queryError('after', `belongs to a list with order=${madeFor}, not ${order}`);
  return { value, factNo };
}

function columnOf(grouping: SessionGrouping): FactGroupColumn {
  return grouping === 'hour' ? 'hour_ms' : VALUE_COLUMNS[grouping];
}

/** Returns the error for a request with too many sums. It names the field of `by` that has the most values. */
async function tooManySums(
  { facts }: StoreTables,
  filter: FactFilter,
  by: readonly SessionGrouping[],
): Promise<FloeError> {
  let most = { field: '', values: 0 };
  for (const field of by) {
    const values = (await facts.totals(filter, [columnOf(field)], MAX_SUMS + 1)).length;
    if (values > most.values) most = { field, values };
  }
  const values = most.values > MAX_SUMS ? `more than ${MAX_SUMS}` : String(most.values);
  return queryError(
    'by',
    `has more than ${MAX_SUMS} combinations, of which ${most.field} has ${values} values; filter them`,
  );
}

function mean(sum: number, count: number): number | null {
  return count === 0 ? null : sum / count;
}

function shownTotals(totals: FactTotals, by: readonly SessionGrouping[]): SessionTotals {
  const { sessions, rewards } = totals;
  const rewardMean = mean(totals.reward_sum, rewards);
  const squareMean = mean(totals.reward_square_sum, rewards);
  return {
    by: shownBy(totals, by),
    sessions,
    usable: totals.usable,
    rewards,
    reward_mean: rewardMean,
    // Rounding can make the difference of equal numbers negative.
    reward_deviation:
      rewardMean === null || squareMean === null ? null : Math.sqrt(Math.max(0, squareMean - rewardMean ** 2)),
    turns_mean: mean(totals.turns, sessions),
    sampled_tokens: totals.sampled_tokens,
    trained_tokens: totals.trained_tokens,
    seconds_mean: mean(totals.total_ms / 1000, totals.timed),
    queued_seconds_mean: mean(totals.queued_ms / 1000, totals.queued),
    engine_seconds: totals.engine_ms / 1000,
    sandbox_seconds: totals.sandbox_ms / 1000,
  };
}

function shownBy(totals: Pick<FactTotals, 'by'>, by: readonly SessionGrouping[]): SessionTotals['by'] {
  const keys = by.map((field) => [field, shownValue(field, totals.by[columnOf(field)] ?? null)] as const);
  return Object.fromEntries(keys);
}

function shownValue(field: SessionGrouping, value: string | number | null): string | null {
  if (value === null) return null;
  return field === 'hour' ? new Date(value).toISOString() : String(value);
}

/**
 * Returns the intervals of a histogram over all values; `null` when there are none. Intervals of whole numbers begin at whole numbers, so
 * there may be fewer of them than requested.
 */
function intervalsOf(
  field: NumberFieldName,
  { min, max }: FactSpread,
  bins: number,
): { readonly from: number; readonly width: number; readonly bins: number } | null {
  if (min === null || max === null) return null;
  if (NUMBER_FIELDS[field].isWhole) {
    const values = max - min + 1;
    const width = Math.ceil(values / bins);
    return { from: min, width, bins: Math.ceil(values / width) };
  }
  const width = (max - min) / bins;
  // Equal values, and values whose difference is too small to be divided, are in one interval.
  return min + width > min
    ? { from: min, width, bins }
    : { from: min, width: Math.max(1, Math.abs(max - min)), bins: 1 };
}

function shownGroup(row: FactGroupRow): GroupFacts {
  const { usable_reward_min: least, usable_reward_max: greatest } = row;
  return {
    task_id: row.task_id,
    trainer: row.trainer,
    harness: row.harness,
    source: row.source,
    sessions: row.sessions,
    usable: row.usable,
    rewards: row.rewards,
    reward_mean: mean(row.reward_sum, row.rewards),
    reward_min: row.reward_min,
    reward_max: row.reward_max,
    is_degenerate: least !== null && least === greatest,
    ended_at: new Date(row.ended_ms).toISOString(),
  };
}
