import type { BatchStreamView, GroupFacts, GroupFactsPage, SessionMeasure, SessionTotals } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../../api.ts';
import { Line } from '../../components/charts.tsx';
import { Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, percent, rewardText } from '../../format.ts';
import { useQuery } from '../../query.ts';
import { linkTo } from '../../route.ts';
import { meanEstimate } from '../../statistics.ts';
import { Measured, sessionsWith, useMeasures, useTotals } from './sums.tsx';

/** Number of groups that are read to count those without an advantage. */
const GROUPS = 1000;
const MAX_VERSIONS = 60;

/** The parts of the rewards, and the sessions and groups that a trainer learns nothing from, with the reasons. */
export function Rewards({ query }: { query: string }): JSX.Element {
  const parts = useMeasures(['reward'], ['source', 'version'], query);
  const unusable = useTotals(['unusable'], query);
  const groups = useQuery(
    `rewards of groups ${query}`,
    (aborted) => getJson<GroupFactsPage>(`groups?limit=${GROUPS}&${query}`, aborted),
    { after: parts },
  );
  const streams = useQuery('streams', (aborted) =>
    getJson<{ streams: readonly BatchStreamView[] }>('rollout/batches', aborted),
  );
  return (
    <>
      <h2>Parts of the rewards</h2>
      <Measured of={parts}>{(measures) => <Parts measures={measures} />}</Measured>
      <h2>Sessions that cannot be trained on</h2>
      <Loaded of={unusable}>{(totals) => <Unusable totals={totals} />}</Loaded>
      <h2>Groups without an advantage</h2>
      <Loaded of={groups}>{(page) => <Degenerate groups={page.groups} />}</Loaded>
      <h2>Groups that batches did not take</h2>
      <Loaded of={streams}>{(data) => <Dropped streams={data.streams} />}</Loaded>
    </>
  );
}

function Parts({ measures }: { measures: readonly SessionMeasure[] }): JSX.Element {
  if (measures.length === 0) {
    return <p class="quiet">No session that matches has a reward of several parts (`reward_components`).</p>;
  }
  const names = [...new Set(measures.map(({ name }) => name))];
  return (
    <>
      <div class="charts">
        {names.map((name) => (
          <ByVersion key={name} name={name} measures={measures.filter((one) => one.name === name)} />
        ))}
      </div>
      <Table heads={['Part', 'Source', 'Version', 'Sessions', 'Mean', 'Deviation', 'Not computed']}>
        {measures.map(({ name, by, count, mean, deviation, failures }) => (
          <tr key={`${name} ${by.source} ${by.version}`}>
            <th scope="row">{name}</th>
            <td>{by.source ?? 'none'}</td>
            <td>{by.version ?? 'none'}</td>
            <td>
              <a
                href={sessionsWith({
                  source: by.source ?? null,
                  version: by.version ?? null,
                  measure: `reward:${name}`,
                })}
              >
                {compact(count + failures)}
              </a>
            </td>
            <td>{rewardText(mean)}</td>
            <td>{rewardText(deviation)}</td>
            <td>{compact(failures)}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

/** The mean of one part by version, over all sources. */
function ByVersion({ name, measures }: { name: string; measures: readonly SessionMeasure[] }): JSX.Element | null {
  const versions = [...new Set(measures.flatMap(({ by }) => by.version ?? []))]
    .sort((a, b) => a.localeCompare(b, undefined, { numeric: true }))
    .slice(-MAX_VERSIONS);
  if (versions.length < 2) return null;
  const points = versions.map((version) => {
    const own = measures.filter(({ by, mean }) => by.version === version && mean !== null);
    const sum = (of: (one: SessionMeasure) => number): number => own.reduce((total, one) => total + of(one), 0);
    const count = sum((one) => one.count);
    const mean = sum((one) => one.count * (one.mean ?? 0)) / Math.max(1, count);
    const square = sum((one) => one.count * ((one.deviation ?? 0) ** 2 + (one.mean ?? 0) ** 2)) / Math.max(1, count);
    const estimate = meanEstimate({ count, mean, deviation: Math.sqrt(Math.max(0, square - mean ** 2)) });
    return { label: version, value: mean, spread: (estimate?.high ?? mean) - mean };
  });
  return <Line title={`${name} by policy version, with its 95 % interval`} points={points} />;
}

function Unusable({ totals }: { totals: readonly SessionTotals[] }): JSX.Element {
  const sessions = totals.reduce((sum, group) => sum + group.sessions, 0);
  const reasons = totals.filter(({ by }) => by.unusable != null).sort((a, b) => b.sessions - a.sessions);
  if (reasons.length === 0) return <p class="quiet">There is none among the {compact(sessions)} that match.</p>;
  return (
    <Table heads={['Reason', 'Sessions', 'Share', 'Sampled tokens']}>
      {reasons.map(({ by, sessions: count, sampled_tokens: tokens }) => (
        <tr key={by.unusable}>
          <th scope="row">{by.unusable}</th>
          <td>
            <a href={sessionsWith({ unusable: by.unusable ?? null })}>{compact(count)}</a>
          </td>
          <td>{percent(count, sessions)}</td>
          <td>{compact(tokens)}</td>
        </tr>
      ))}
    </Table>
  );
}

function Degenerate({ groups }: { groups: readonly GroupFacts[] }): JSX.Element {
  if (groups.length === 0) return <p class="quiet">No group has an ended session that matches.</p>;
  const sources = [...new Set(groups.map(({ source }) => source ?? 'none'))].sort();
  return (
    <>
      <p>Of the newest {compact(groups.length)} groups that match:</p>
      <Table
        heads={['Source', 'Groups', 'All rewards equal', 'No usable sample', 'One usable sample', 'Rewards differ']}
      >
        {sources.map((source) => {
          const own = groups.filter((group) => (group.source ?? 'none') === source);
          const count = (is: (group: GroupFacts) => boolean): number => own.filter(is).length;
          const equal = count((group) => group.is_degenerate && group.usable > 1);
          const [none, one] = [count(({ usable }) => usable === 0), count(({ usable }) => usable === 1)];
          return (
            <tr key={source}>
              <th scope="row">{source}</th>
              <td>
                <a href={linkTo(['groups'], { source })}>{compact(own.length)}</a>
              </td>
              <td>
                {compact(equal)} ({percent(equal, own.length)})
              </td>
              <td>{compact(none)}</td>
              <td>{compact(one)}</td>
              <td>{compact(own.length - equal - none - one)}</td>
            </tr>
          );
        })}
      </Table>
    </>
  );
}

function Dropped({ streams }: { streams: readonly BatchStreamView[] }): JSX.Element {
  if (streams.length === 0) return <p class="quiet">There is no batch stream.</p>;
  return (
    <Table
      heads={[
        'Stream',
        'Trainer',
        'In batches',
        'Ready',
        'Rejected, by reason',
        'Too old',
        'Restarted',
        'Useful tokens',
      ]}
    >
      {streams.map(({ batch_id: id, trainer, progress, useful_share: useful }) => (
        <tr key={id}>
          <th scope="row">{id}</th>
          <td>{trainer}</td>
          <td>{compact(progress.handed)}</td>
          <td>{compact(progress.ready)}</td>
          <td>
            {Object.entries(progress.rejected)
              .map(([reason, count]) => `${reason} ${compact(count)}`)
              .join(', ') || '–'}
          </td>
          <td>{compact(progress.expired)}</td>
          <td>{compact(progress.restarted)}</td>
          <td>{useful === null ? '–' : percent(useful, 1)}</td>
        </tr>
      ))}
    </Table>
  );
}
