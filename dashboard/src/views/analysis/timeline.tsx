import type { SessionFactsPage } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../../api.ts';
import { Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, percent, timeText } from '../../format.ts';
import { useQuery } from '../../query.ts';
import { linkTo, route, setParams } from '../../route.ts';
import { type Bar, barsOf, type Lane, lanesOf } from '../../timeline.ts';

/** Maximum number of sessions that are drawn. The newest sessions are drawn. */
const SESSIONS = 300;
/** Number of colours of versions; they repeat after these. */
const COLOURS = 6;
const LANE_HEIGHT = 14;
const WIDTH = 1200;
/** Space for the names of nodes. */
const LEFT = 110;

/** The newest sessions that match as bars over time, a lane for each place of a node: by policy version, or by stage. */
export function Timeline({ query }: { query: string }): JSX.Element {
  const page = useQuery(`timeline ${query}`, (aborted) =>
    getJson<SessionFactsPage>(`sessions?limit=${SESSIONS}&${query}`, aborted),
  );
  const byStage = route.value.params.get('by') === 'stage';
  return (
    <>
      <p>
        <label>
          colours show{' '}
          <select
            value={byStage ? 'stage' : 'version'}
            onChange={(event) => setParams({ by: event.currentTarget.value })}
          >
            <option value="version">the policy version</option>
            <option value="stage">the stage</option>
          </select>
        </label>
      </p>
      <Loaded of={page}>{({ sessions }) => <Drawing bars={barsOf(sessions)} byStage={byStage} />}</Loaded>
    </>
  );
}

function Drawing({ bars, byStage }: { bars: readonly Bar[]; byStage: boolean }): JSX.Element {
  const [first] = bars;
  if (first === undefined) return <p class="quiet">No ended session that matches has reached a node.</p>;
  const lanes = lanesOf(bars);
  const fromMs = first.startMs;
  const toMs = Math.max(...bars.map(({ endMs }) => endMs));
  const earliestEnd = Math.min(...bars.map(({ endMs }) => endMs));
  const versions = [...new Set(bars.flatMap(({ session }) => session.version ?? []))].sort((a, b) =>
    a.localeCompare(b, undefined, { numeric: true }),
  );
  return (
    <>
      <p>
        {compact(bars.length)} sessions from {timeText(new Date(fromMs).toISOString())} to{' '}
        {timeText(new Date(toMs).toISOString())}, in {lanes.length} lanes.{' '}
        <button type="button" onClick={() => setParams({ until: new Date(earliestEnd).toISOString() })}>
          Earlier
        </button>{' '}
        {route.value.params.get('until') !== null && (
          <button type="button" onClick={() => setParams({ until: null })}>
            Newest
          </button>
        )}
      </p>
      <Legend versions={versions} byStage={byStage} />
      <svg
        class="timeline"
        viewBox={`0 0 ${WIDTH} ${lanes.length * LANE_HEIGHT}`}
        aria-label="Sessions over time, a lane for each place of a node"
      >
        <title>Sessions over time, a lane for each place of a node</title>
        {lanes.map((lane, index) => (
          <LaneBars
            key={`${lane.node} ${lane.bars[0]?.session.session_id}`}
            {...{ lane, y: index * LANE_HEIGHT, isFirst: lanes[index - 1]?.node !== lane.node, byStage, versions }}
            x={(ms) => LEFT + ((WIDTH - LEFT) * (ms - fromMs)) / Math.max(1, toMs - fromMs)}
          />
        ))}
      </svg>
      <Staleness bars={bars} />
    </>
  );
}

function LaneBars(props: {
  readonly lane: Lane;
  readonly y: number;
  readonly isFirst: boolean;
  readonly byStage: boolean;
  readonly versions: readonly string[];
  readonly x: (ms: number) => number;
}): JSX.Element {
  const { lane, y, isFirst, byStage, versions, x } = props;
  const rect = (key: string, tone: string, startMs: number, endMs: number): JSX.Element => (
    <rect
      key={key}
      class={tone}
      x={x(startMs)}
      y={y + 1}
      width={Math.max(1, x(endMs) - x(startMs))}
      height={LANE_HEIGHT - 3}
    />
  );
  return (
    <g>
      {isFirst && (
        <text class="lane-name" x={0} y={y + LANE_HEIGHT - 3}>
          {lane.node.slice(0, 16)}
        </text>
      )}
      {lane.bars.map(({ session, startMs, endMs, staleness, stages }) => {
        const age = staleness === null || staleness === 0 ? '' : `, ${staleness} steps old`;
        const title = `${session.session_id}: ${session.outcome}, version ${session.version ?? 'unknown'}${age}`;
        const tone = `version-${versions.indexOf(session.version ?? '') % COLOURS}`;
        return (
          <a
            key={session.session_id}
            href={linkTo(['sessions', session.session_id])}
            aria-label={title}
            class={staleness !== null && staleness > 0 ? 'stale' : undefined}
          >
            <title>{title}</title>
            {byStage
              ? stages.map((stage) => rect(stage.name, `stage-${stage.name}`, stage.startMs, stage.endMs))
              : rect('whole', tone, startMs, endMs)}
          </a>
        );
      })}
    </g>
  );
}

function Legend({ versions, byStage }: { versions: readonly string[]; byStage: boolean }): JSX.Element {
  const entries = byStage
    ? ['INIT', 'READY', 'RUNNING', 'POSTRUN'].map((name) => [`stage-${name}`, name] as const)
    : versions.map((version, index) => [`version-${index % COLOURS}`, version] as const);
  return (
    <ul class="legend" aria-label={byStage ? 'Stages' : 'Policy versions'}>
      {entries.map(([tone, name]) => (
        <li key={name}>
          <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
            <rect class={tone} width="10" height="10" />
          </svg>{' '}
          {name}
        </li>
      ))}
      <li>an outline marks sessions whose first token is of an older version than the newest one at their end</li>
    </ul>
  );
}

/** Shows how many of the sessions have each staleness. */
function Staleness({ bars }: { bars: readonly Bar[] }): JSX.Element {
  const counts = new Map<number, number>();
  for (const { staleness } of bars) {
    if (staleness !== null) counts.set(staleness, (counts.get(staleness) ?? 0) + 1);
  }
  if (counts.size === 0) return <p class="quiet">No version of these sessions names a step of the policy.</p>;
  return (
    <Table heads={['Steps older than the newest version', 'Sessions', 'Share']}>
      {[...counts]
        .sort(([a], [b]) => a - b)
        .map(([steps, count]) => (
          <tr key={steps}>
            <th scope="row">{steps}</th>
            <td>{compact(count)}</td>
            <td>{percent(count, bars.length)}</td>
          </tr>
        ))}
    </Table>
  );
}
