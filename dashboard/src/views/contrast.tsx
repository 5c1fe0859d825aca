import type { SessionTotals } from '@floe-rl/core/schema';
import type { ComponentChildren, JSX } from 'preact';
import { getJson } from '../api.ts';
import { FilterForm } from '../components/filter-form.tsx';
import { Badge, Loaded } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { queryOf } from '../filters.ts';
import { compact, duration, rewardText } from '../format.ts';
import { useQuery } from '../query.ts';
import { linkTo, route, setParams } from '../route.ts';
import {
  differs,
  type Estimate,
  meanDifference,
  meanEstimate,
  type Sample,
  shareDifference,
  shareEstimate,
} from '../statistics.ts';

const SIDES = ['a', 'b'] as const;
type Side = (typeof SIDES)[number];

/** Minimum reward at which a session counts as resolved, unless the address has another value. */
const RESOLVED_REWARD = '1';

/** Sums over the sessions of one side. `resolved` is the number of sessions with at least the minimum reward. */
type Sums = { readonly totals: SessionTotals; readonly resolved: number };
type SideSums = { readonly all: Sums | null; readonly bySource: ReadonlyMap<string, Sums> };

/** Two selections of ended sessions side by side, each with its own filters. The address holds both, as the parameters `a` and `b`. */
export function Contrast(): JSX.Element {
  const { params } = route.value;
  const threshold = params.get('resolved') ?? RESOLVED_REWARD;
  const [a, b] = [paramsOf('a'), paramsOf('b')];
  const sums = useQuery(`contrast ${a} | ${b} | ${threshold}`, async (aborted) => {
    const [first, second] = await Promise.all([a, b].map((filters) => loadSums(filters, threshold, aborted)));
    return { first: first ?? EMPTY, second: second ?? EMPTY };
  });
  return (
    <>
      <h1>Compare</h1>
      <div class="sides">
        {SIDES.map((side) => (
          <section key={side} aria-label={`Side ${side.toUpperCase()}`}>
            <h2>{side.toUpperCase()}</h2>
            <FilterForm
              label={`Filters of side ${side.toUpperCase()}`}
              params={paramsOf(side)}
              change={(changes) => changeSide(side, changes)}
            />
            <a href={linkTo(['sessions'], Object.fromEntries(paramsOf(side)))}>Show these sessions</a>
          </section>
        ))}
      </div>
      <label>
        A session is resolved from this reward on{' '}
        <input
          class="number"
          inputMode="decimal"
          value={threshold}
          onChange={(event) => setParams({ resolved: event.currentTarget.value })}
        />
      </label>
      <Loaded of={sums}>{({ first, second }) => <Comparison first={first} second={second} />}</Loaded>
    </>
  );
}

function paramsOf(side: Side): URLSearchParams {
  return new URLSearchParams(route.value.params.get(side) ?? '');
}

function changeSide(side: Side, changes: Readonly<Record<string, string | null>>): void {
  const params = paramsOf(side);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === '') params.delete(name);
    else params.set(name, value);
  }
  setParams({ [side]: params.toString() });
}

const EMPTY: SideSums = { all: null, bySource: new Map() };

async function loadSums(filters: URLSearchParams, threshold: string, aborted: AbortSignal): Promise<SideSums> {
  const read = async (by: string | null, params: URLSearchParams): Promise<readonly SessionTotals[]> =>
    (await getJson<{ groups: readonly SessionTotals[] }>(`sessions/totals?${queryOf(params, { by })}`, aborted)).groups;
  const [[all], bySource, resolved] = await Promise.all([
    read(null, filters),
    read('source', filters),
    canResolve(filters, threshold) ? read('source', atLeast(filters, threshold)) : [],
  ]);
  if (all === undefined) return EMPTY;
  const resolvedOf = new Map(resolved.map((group) => [sourceOf(group), group.sessions]));
  const total = resolved.reduce((sum, { sessions }) => sum + sessions, 0);
  return {
    all: { totals: all, resolved: total },
    bySource: new Map(
      bySource.map((group) => [sourceOf(group), { totals: group, resolved: resolvedOf.get(sourceOf(group)) ?? 0 }]),
    ),
  };
}

function sourceOf({ by }: SessionTotals): string {
  return by.source ?? 'none';
}

/** Whether a session that the filters select can have a reward from the threshold on. */
function canResolve(filters: URLSearchParams, threshold: string): boolean {
  const most = filters.get('max_reward');
  return most === null || most === '' || Number(most) >= Number(threshold);
}

/** Returns the filters with a lower limit of the reward, unless they have a higher one. */
function atLeast(filters: URLSearchParams, threshold: string): URLSearchParams {
  const least = filters.get('min_reward');
  const params = new URLSearchParams(filters);
  if (least === null || least === '' || Number(least) < Number(threshold)) params.set('min_reward', threshold);
  return params;
}

function Comparison({ first, second }: { first: SideSums; second: SideSums }): JSX.Element {
  if (first.all === null || second.all === null) {
    const empty = [first.all === null ? 'A' : [], second.all === null ? 'B' : []].flat().join(' and ');
    return <p class="quiet">No ended session matches the filters of {empty}, so there is nothing to compare.</p>;
  }
  return (
    <>
      <Overall first={first.all} second={second.all} />
      <h2>By source</h2>
      <BySource first={first.bySource} second={second.bySource} />
      <p class="quiet">
        Intervals are at 95 %: of means by Student's distribution and Welch's method, of shares by Wilson's and
        Newcombe's. They count every session as independent; samples of one task resemble each other, so the true
        intervals are somewhat wider.
      </p>
    </>
  );
}

function Overall({ first, second }: { first: Sums; second: Sums }): JSX.Element {
  const [a, b] = [first.totals, second.totals];
  const usable = [a, b].map(({ usable: part, sessions }) => shareEstimate(part, sessions)) as [Share, Share];
  const resolved = [resolvedShare(first), resolvedShare(second)] as const;
  const plain = (name: string, of: (totals: SessionTotals) => number | null, text: (value: number) => string) => {
    const [one, other] = [of(a), of(b)];
    const difference = one === null || other === null ? '–' : signed(other - one, text);
    const shown = [one, other].map((value) => (value === null ? '–' : text(value)));
    return <Row name={name} cells={[...shown, difference]} />;
  };
  return (
    <Table heads={['', 'A', 'B', 'B minus A']}>
      {plain('Sessions', ({ sessions }) => sessions, compact)}
      <Row name="Usable" cells={[...usable.map(shareText), differenceText(shareDifference(...usable), points)]} />
      <Row
        name="Mean reward"
        cells={[
          meanText(meanEstimate(sampleOf(a))),
          meanText(meanEstimate(sampleOf(b))),
          differenceText(meanDifference(sampleOf(a), sampleOf(b)), rewardText),
        ]}
      />
      <Row name="Resolved" cells={[...resolved.map(shareText), differenceText(shareDifference(...resolved), points)]} />
      {plain('Turns per session', ({ turns_mean: mean }) => mean, rounded)}
      {plain('Sampled tokens per session', ({ sampled_tokens: tokens, sessions }) => tokens / sessions, rounded)}
      {plain('Trained tokens per session', ({ trained_tokens: tokens, sessions }) => tokens / sessions, rounded)}
      {plain('Time per session', ({ seconds_mean: mean }) => mean, seconds)}
      {plain('Time in the queue', ({ queued_seconds_mean: mean }) => mean, seconds)}
    </Table>
  );
}

function BySource(props: {
  readonly first: ReadonlyMap<string, Sums>;
  readonly second: ReadonlyMap<string, Sums>;
}): JSX.Element {
  const { first, second } = props;
  const sources = [...new Set([...first.keys(), ...second.keys()])].sort();
  const cells = (sums: Sums | undefined) =>
    sums === undefined
      ? ['0', '–', '–']
      : [compact(sums.totals.sessions), meanText(meanEstimate(sampleOf(sums.totals))), shareText(resolvedShare(sums))];
  return (
    <Table
      heads={[
        'Source',
        'A: sessions',
        'A: mean reward',
        'A: resolved',
        'B: sessions',
        'B: mean reward',
        'B: resolved',
        'Reward, B minus A',
      ]}
    >
      {sources.map((source) => {
        const [one, other] = [first.get(source), second.get(source)];
        const difference =
          one === undefined || other === undefined
            ? null
            : meanDifference(sampleOf(one.totals), sampleOf(other.totals));
        return (
          <Row
            key={source}
            name={source}
            cells={[...cells(one), ...cells(other), differenceText(difference, rewardText)]}
          />
        );
      })}
    </Table>
  );
}

function Row({ name, cells }: { name: string; cells: readonly ComponentChildren[] }): JSX.Element {
  return (
    <tr>
      <th scope="row">{name}</th>
      {cells.map((cell, index) => (
        <td key={`${index}`}>{cell}</td>
      ))}
    </tr>
  );
}

type Share = ReturnType<typeof shareEstimate>;

function sampleOf({ rewards, reward_mean, reward_deviation }: SessionTotals): Sample {
  return { count: rewards, mean: reward_mean ?? 0, deviation: reward_deviation ?? 0 };
}

/** The share of the sessions with a reward that are resolved. */
function resolvedShare({ totals, resolved }: Sums): Share {
  return shareEstimate(resolved, totals.rewards);
}

const rounded = (value: number): string => compact(Math.round(value * 10) / 10);
const seconds = (value: number): string => duration(value * 1000);
const points = (value: number): string => `${Math.round(value * 1000) / 10} points`;
const shareValue = (value: number): string => `${Math.round(value * 1000) / 10} %`;

function intervalText({ low, high }: Estimate, text: (value: number) => string): string {
  return low === null || high === null ? '' : ` (${minus(text(low))} to ${minus(text(high))})`;
}

function meanText(estimate: Estimate | null): string {
  return estimate === null ? '–' : `${rewardText(estimate.value)}${intervalText(estimate, rewardText)}`;
}

function shareText(share: Share): string {
  return share === null ? '–' : `${shareValue(share.value)}${intervalText(share, shareValue)}`;
}

function differenceText(estimate: Estimate | null, text: (value: number) => string): ComponentChildren {
  if (estimate === null) return '–';
  const shown = `${signed(estimate.value, text)}${intervalText(estimate, text)}`;
  if (!differs(estimate)) return shown;
  return (
    <>
      {shown} <Badge tone={estimate.value > 0 ? 'good' : 'warn'}>differs</Badge>
    </>
  );
}

/** Shows a negative number with a minus sign instead of a hyphen. */
function minus(text: string): string {
  return text.replace(/^-/, '−');
}

function signed(value: number, text: (value: number) => string): string {
  return value < 0 ? `−${text(-value)}` : `+${text(value)}`;
}
