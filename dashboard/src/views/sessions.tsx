import type {
  SessionFacts,
  SessionFactsPage,
  SessionGrouping,
  SessionHistogram,
  SessionTotals,
} from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { type Column, Columns, Line } from '../components/charts.tsx';
import { FilterForm } from '../components/filter-form.tsx';
import { Badge, Figure, Loaded, toneOf } from '../components/parts.tsx';
import { queryOf } from '../filters.ts';
import { compact, duration, percent, rewardText, timeText } from '../format.ts';
import { type Query, useQuery } from '../query.ts';
import { linkTo, route, setParams } from '../route.ts';

const REFRESH_MS = 5_000;
/** Sums and charts are loaded less often, because they read many more rows than the list. */
const TOTALS_MS = 30_000;
const TOTALS = { nextMs: () => TOTALS_MS };
/** Number of sessions on one page of the list. */
const PAGE = 100;
/** Maximum number of values of a field that a chart shows. Of values with an order, the newest are shown. */
const MAX_COLUMNS = 60;

/** The columns that the list can be ordered by, with the field of the API. */
const ORDERS = { Ended: 'newest', Reward: '-reward', Turns: '-turns', Tokens: '-tokens', Time: '-seconds' } as const;

/** All ended sessions: the list, with totals and distributions of the sessions that match the filters. */
export function Sessions(): JSX.Element {
  const { params } = route.value;
  const query = queryOf(params);
  const order = params.get('order') ?? 'newest';
  const after = params.get('after');
  const list = useQuery(
    `sessions ${query} ${order} ${after}`,
    (aborted) =>
      getJson<SessionFactsPage>(`sessions?${queryOf(params, { order, after, limit: String(PAGE) })}`, aborted),
    { nextMs: () => (after === null && order === 'newest' ? REFRESH_MS : null) },
  );
  return (
    <>
      <h1>Sessions</h1>
      <FilterForm />
      <p>
        <a href={linkTo(['compare'], { a: query })}>Compare these with others</a>
      </p>
      <Totals query={query} list={list} />
      <Loaded of={list}>{(page) => <List page={page} order={order} />}</Loaded>
    </>
  );
}

function totalsBy(by: readonly SessionGrouping[], query: string) {
  return async (aborted: AbortSignal): Promise<readonly SessionTotals[]> =>
    (await getJson<{ groups: readonly SessionTotals[] }>(`sessions/totals?by=${by.join(',')}&${query}`, aborted))
      .groups;
}

function Totals({ query, list }: { query: string; list: Query<unknown> }): JSX.Element {
  const later = { ...TOTALS, after: list };
  const outcomes = useQuery(`outcomes ${query}`, totalsBy(['outcome'], query), later);
  const versions = useQuery(`versions ${query}`, totalsBy(['version'], query), later);
  const hours = useQuery(`hours ${query}`, totalsBy(['hour', 'outcome'], query), later);
  const rewards = useQuery(
    `rewards ${query}`,
    (aborted) => getJson<SessionHistogram>(`sessions/histogram?of=reward&${query}`, aborted),
    later,
  );
  return (
    <>
      <Loaded of={outcomes}>{(groups) => <Sums groups={groups} />}</Loaded>
      <div class="charts">
        <Loaded of={hours}>
          {(groups) => <Columns title="Ended sessions by hour and outcome" columns={byHour(groups)} />}
        </Loaded>
        <Loaded of={versions}>{(groups) => <RewardByVersion groups={groups} />}</Loaded>
        <Loaded of={rewards}>{(histogram) => <Distribution histogram={histogram} />}</Loaded>
      </div>
    </>
  );
}

function Sums({ groups }: { groups: readonly SessionTotals[] }): JSX.Element {
  const sum = (field: 'sessions' | 'usable' | 'sampled_tokens' | 'trained_tokens' | 'rewards'): number =>
    groups.reduce((all, group) => all + group[field], 0);
  const sessions = sum('sessions');
  const rewards = sum('rewards');
  const total = groups.reduce((all, group) => all + (group.reward_mean ?? 0) * group.rewards, 0);
  return (
    <>
      <div class="figures">
        <Figure label="sessions" value={compact(sessions)} />
        <Figure label="usable" value={percent(sum('usable'), sessions)} note={compact(sum('usable'))} />
        <Figure
          label="mean reward"
          value={rewardText(rewards === 0 ? null : total / rewards)}
          note={`of ${compact(rewards)}`}
        />
        <Figure
          label="sampled tokens"
          value={compact(sum('sampled_tokens'))}
          note={`${compact(sum('trained_tokens'))} trained`}
        />
        <Figure
          label="sampled per usable"
          value={sum('usable') === 0 ? '–' : compact(Math.round(sum('sampled_tokens') / sum('usable')))}
          note="tokens"
        />
      </div>
      <ul class="outcomes" aria-label="Outcomes">
        {groups.map(({ by, sessions: count }) => (
          <li key={by.outcome ?? ''}>
            <Badge tone={toneOf(by.outcome ?? '')}>{by.outcome}</Badge> {compact(count)}
          </li>
        ))}
      </ul>
    </>
  );
}

/** Returns a column for each hour, with a part for each outcome: `completed` at the bottom, then the others by name. */
function byHour(groups: readonly SessionTotals[]): Column[] {
  const hours = [...new Set(groups.map(({ by }) => by.hour ?? ''))].sort().slice(-MAX_COLUMNS);
  return hours.map((hour) => ({
    label: timeText(hour),
    parts: groups
      .filter(({ by }) => by.hour === hour)
      .map(({ by, sessions }) => ({ name: by.outcome ?? '', count: sessions, tone: toneOf(by.outcome ?? '') }))
      .sort((a, b) => (a.name === 'completed' ? -1 : b.name === 'completed' ? 1 : a.name < b.name ? -1 : 1)),
  }));
}

function RewardByVersion({ groups }: { groups: readonly SessionTotals[] }): JSX.Element {
  const known = groups.filter(({ by, reward_mean }) => by.version != null && reward_mean !== null);
  const points = known
    .map(({ by, reward_mean, reward_deviation, rewards }) => ({
      label: by.version ?? '',
      value: reward_mean ?? 0,
      // Standard error of the mean, twice: about the 95 % interval.
      spread: (2 * (reward_deviation ?? 0)) / Math.sqrt(Math.max(1, rewards)),
    }))
    .sort((a, b) => a.label.localeCompare(b.label, undefined, { numeric: true }))
    .slice(-MAX_COLUMNS);
  if (points.length < 2) return <p class="quiet">Rewards of fewer than two policy versions.</p>;
  return <Line title="Mean reward by policy version, with its 95 % interval" points={points} />;
}

function Distribution({ histogram: { bins, without } }: { histogram: SessionHistogram }): JSX.Element {
  const columns = bins.map(({ from, to, sessions }) => ({
    label: from === to ? compact(from) : `${compact(from)} to ${compact(to)}`,
    parts: [{ name: 'sessions', count: sessions, tone: 'model' as const }],
  }));
  return (
    <Columns title={`Rewards${without === 0 ? '' : ` (${compact(without)} sessions have none)`}`} columns={columns} />
  );
}

function List({ page, order }: { page: SessionFactsPage; order: string }): JSX.Element {
  const { sessions, next } = page;
  if (sessions.length === 0) return <p class="quiet">No ended session matches.</p>;
  return (
    <>
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Session</th>
            <th scope="col">Task</th>
            <th scope="col">Harness</th>
            <th scope="col">Source</th>
            <th scope="col">Outcome</th>
            <th scope="col">Version</th>
            {Object.entries(ORDERS).map(([name, field]) => (
              <th scope="col" key={name} aria-sort={order === field ? 'descending' : undefined}>
                <button type="button" class="link" onClick={() => setParams({ order: field, after: null })}>
                  {name}
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sessions.map((session) => (
            <Row key={session.session_id} session={session} />
          ))}
        </tbody>
      </table>
      <p>
        {route.value.params.get('after') !== null && (
          <button type="button" onClick={() => setParams({ after: null })}>
            First page
          </button>
        )}{' '}
        {next !== null && (
          <button type="button" onClick={() => setParams({ after: next })}>
            Next page
          </button>
        )}
      </p>
    </>
  );
}

function Row({ session }: { session: SessionFacts }): JSX.Element {
  return (
    <tr>
      <td>
        <a href={linkTo(['sessions', session.session_id], { mark: route.value.params.get('text') })}>
          {session.session_id}
        </a>
      </td>
      <td>
        <a href={linkTo(['tasks', session.task_id])}>{session.task_id}</a> #{session.sample_index}
      </td>
      <td>
        {session.harness}
        {session.agent !== null && ` ${session.agent}`}
      </td>
      <td>{session.source ?? '–'}</td>
      <td>
        <Badge tone={toneOf(session.outcome)}>{session.outcome}</Badge>{' '}
        {session.unusable !== null && session.unusable !== session.outcome && (
          <Badge tone="warn">{session.unusable}</Badge>
        )}
      </td>
      <td>{session.version ?? '–'}</td>
      <td>{timeText(session.ended_at)}</td>
      <td>{rewardText(session.reward)}</td>
      <td>{session.turns}</td>
      <td>{compact(session.sampled_tokens)}</td>
      <td>{duration(session.total_ms)}</td>
    </tr>
  );
}
