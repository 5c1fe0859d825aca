import type {
  MeasureKind,
  SessionGrouping,
  SessionMeasure,
  SessionMeasures,
  SessionTotals,
} from '@floe-rl/core/schema';
import type { ComponentChildren, JSX } from 'preact';
import { getJson } from '../../api.ts';
import { Loaded } from '../../components/parts.tsx';
import { filtersIn } from '../../filters.ts';
import { compact } from '../../format.ts';
import { type Query, useQuery } from '../../query.ts';
import { linkTo, route } from '../../route.ts';

const REFRESH = { nextMs: () => 30_000 };

/** Loads sums over the sessions that match the filters in the address. */
export function useTotals(by: readonly SessionGrouping[], query: string): Query<readonly SessionTotals[]> {
  const path = `sessions/totals?${parameters({ by: by.join(',') }, query)}`;
  return useQuery(
    path,
    async (aborted) => (await getJson<{ groups: readonly SessionTotals[] }>(path, aborted)).groups,
    REFRESH,
  );
}

/** Loads the measures of the sessions, by kind and name. */
export function useMeasures(
  of: readonly MeasureKind[],
  by: readonly SessionGrouping[],
  query: string,
  after?: Query<unknown>,
): Query<SessionMeasures> {
  const path = `sessions/measures?${parameters({ of: of.join(','), by: by.join(',') }, query)}`;
  return useQuery(path, (aborted) => getJson<SessionMeasures>(path, aborted), { ...REFRESH, after });
}

function parameters(own: Readonly<Record<string, string>>, query: string): string {
  const given = new URLSearchParams(Object.entries(own).filter(([, value]) => value !== ''));
  return [given.toString(), query].filter((text) => text !== '').join('&');
}

/**
 * Returns the address of the list of sessions with the filters in the address and further filters. A filter with the value `null` is written
 * as `none`.
 */
export function sessionsWith(more: Readonly<Record<string, string | null>>): string {
  const added = Object.entries(more).map(([name, value]) => [name, value ?? 'none'] as const);
  return linkTo(['sessions'], { ...Object.fromEntries(filtersIn(route.value.params)), ...Object.fromEntries(added) });
}

/** Two queries as one, which has data when both have. */
export function both<A, B>(first: Query<A>, second: Query<B>): Query<{ readonly first: A; readonly second: B }> {
  const { data: a } = first;
  const { data: b } = second;
  return {
    data: a === null || b === null ? null : { first: a, second: b },
    error: first.error ?? second.error,
    isLoading: first.isLoading || second.isLoading,
  };
}

/** Returns the measures that belong to a row of sums by the same fields. */
export function measuresOf(measures: readonly SessionMeasure[], by: SessionTotals['by']): readonly SessionMeasure[] {
  const names = Object.keys(by) as SessionGrouping[];
  return measures.filter((measure) => names.every((name) => measure.by[name] === by[name]));
}

/** Shows measures after they are loaded. A note is added when they cover only the newest sessions. */
export function Measured(props: {
  readonly of: Query<SessionMeasures>;
  readonly children: (measures: readonly SessionMeasure[]) => ComponentChildren;
}): JSX.Element {
  const { of, children } = props;
  return (
    <Loaded of={of}>
      {({ measures, newest }) => (
        <>
          <Newest count={newest} />
          {children(measures)}
        </>
      )}
    </Loaded>
  );
}

/** A note that the measures cover only the newest sessions, and how to get the measures of all sessions. */
export function Newest({ count }: { count: number | null }): JSX.Element | null {
  if (count === null) return null;
  return (
    <p class="quiet" role="note">
      Of the newest {compact(count)} sessions that match. Sums of all are kept by hour, trainer, harness, source,
      outcome, version, dialect and engine: remove the other filters to see them.
    </p>
  );
}
