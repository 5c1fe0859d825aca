import type { SessionMeasure } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { type Column, Columns, Line } from '../../components/charts.tsx';
import { Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, duration, percent, timeText } from '../../format.ts';
import { route, setParams } from '../../route.ts';
import { Measured, sessionsWith, useMeasures } from './sums.tsx';

/** Maximum number of hours that a chart shows. The newest hours are shown. */
const MAX_HOURS = 60;

/** The calls of tools and the hints of floe agents: how many, how many failed, and how long they took. */
export function Tools({ query }: { query: string }): JSX.Element {
  const named = useMeasures(['tool', 'hint'], [], query);
  const hours = useMeasures(['tool', 'hint'], ['hour'], query, named);
  return (
    <>
      <Measured of={named}>
        {(measures) => <ToolTable measures={measures.filter(({ of }) => of === 'tool')} />}
      </Measured>
      <Measured of={hours}>{(measures) => <OverTime measures={measures} />}</Measured>
      <h2>Hints</h2>
      <Loaded of={named}>
        {({ measures }) => <HintTable measures={measures.filter(({ of }) => of === 'hint')} />}
      </Loaded>
    </>
  );
}

function ToolTable({ measures }: { measures: readonly SessionMeasure[] }): JSX.Element {
  if (measures.length === 0) return <p class="quiet">No session that matches has called a tool.</p>;
  const chosen = route.value.params.get('tool');
  const ordered = [...measures].sort((a, b) => b.count - a.count);
  return (
    <>
      <Table heads={['Tool', 'Calls', 'Failed', 'Mean', 'Median', '95th percentile', 'Sessions']}>
        {ordered.map(({ name, count, failures, mean, p50, p95 }) => (
          <tr key={name} aria-selected={name === chosen}>
            <th scope="row">
              <button
                type="button"
                class="link"
                aria-pressed={name === chosen}
                onClick={() => setParams({ tool: name === chosen ? null : name })}
              >
                {name}
              </button>
            </th>
            <td>{compact(count)}</td>
            <td>
              {compact(failures)} ({percent(failures, count)})
            </td>
            <td>{seconds(mean)}</td>
            <td>{seconds(p50)}</td>
            <td>{seconds(p95)}</td>
            <td>
              <a href={sessionsWith({ measure: `tool:${name}` })} aria-label={`show sessions that called ${name}`}>
                show
              </a>
            </td>
          </tr>
        ))}
      </Table>
      <p class="quiet">
        A time is from the end of the reply to the request with the result. A call has failed when its arguments are no
        JSON object or its tool does not exist; of floe agents, also when the tool returned an error. Press a tool to
        see it over time.
      </p>
    </>
  );
}

function OverTime({ measures }: { measures: readonly SessionMeasure[] }): JSX.Element | null {
  const chosen = route.value.params.get('tool');
  const tools = measures.filter(({ of, name }) => of === 'tool' && (chosen === null || name === chosen));
  const hints = measures.filter(({ of }) => of === 'hint');
  const timed = tools.filter(({ p95 }) => p95 !== null).slice(-MAX_HOURS);
  if (tools.length === 0 && hints.length === 0) return null;
  return (
    <div class="charts">
      <Columns title={`Calls of ${chosen ?? 'all tools'} by hour`} columns={byHour(tools)} />
      {hints.length > 0 && <Columns title="Hints by hour" columns={byHour(hints)} />}
      {chosen !== null && timed.length > 1 && (
        <Line
          title={`95th percentile of the time of ${chosen} by hour, in seconds`}
          points={timed.map(({ by, p95 }) => ({ label: timeText(by.hour ?? ''), value: p95 ?? 0, spread: 0 }))}
        />
      )}
    </div>
  );
}

function byHour(measures: readonly SessionMeasure[]): Column[] {
  const hours = [...new Set(measures.map(({ by }) => by.hour ?? ''))].sort().slice(-MAX_HOURS);
  return hours.map((hour) => {
    const own = measures.filter(({ by }) => by.hour === hour);
    const count = own.reduce((sum, one) => sum + one.count, 0);
    const failed = Math.min(
      count,
      own.reduce((sum, one) => sum + one.failures, 0),
    );
    const parts = [
      { name: 'others', count: count - failed, tone: 'model' as const },
      { name: 'failed', count: failed, tone: 'bad' as const },
    ];
    return {
      label: timeText(hour),
      parts: failed === 0 ? [{ ...parts[0], name: 'count' } as Column['parts'][number]] : parts,
    };
  });
}

function HintTable({ measures }: { measures: readonly SessionMeasure[] }): JSX.Element {
  if (measures.length === 0) {
    return <p class="quiet">No session that matches was given a hint. Only floe agents give them.</p>;
  }
  return (
    <Table heads={['Hint', 'Given', 'Sessions']}>
      {[...measures]
        .sort((a, b) => b.count - a.count)
        .map(({ name, count }) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{compact(count)}</td>
            <td>
              <a href={sessionsWith({ measure: `hint:${name}` })} aria-label={`show sessions with the hint ${name}`}>
                show
              </a>
            </td>
          </tr>
        ))}
    </Table>
  );
}

function seconds(value: number | null): string {
  return duration(value === null ? null : value * 1000);
}
