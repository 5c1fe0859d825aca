import type { SessionGrouping, SessionMeasure, SessionTotals } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, duration, percent } from '../../format.ts';
import { route, setParams } from '../../route.ts';
import { both, measuresOf, Newest, sessionsWith, useMeasures, useTotals } from './sums.tsx';

/** The fields that costs can be grouped by. */
const FIELDS = [
  'harness',
  'source',
  'version',
  'trainer',
  'engine',
  'node',
] as const satisfies readonly SessionGrouping[];
type Field = (typeof FIELDS)[number];

/** What a usable sample costs: tokens, time of the engines and of the sandboxes, CPU time of the nodes, and stored bytes. */
export function Cost({ query }: { query: string }): JSX.Element {
  const chosen = route.value.params.get('by');
  const field = FIELDS.find((one) => one === chosen) ?? 'harness';
  const totals = both(useTotals([field], query), useMeasures(['cost'], [field], query));
  return (
    <>
      <label>
        by{' '}
        <select value={field} onChange={(event) => setParams({ by: event.currentTarget.value })}>
          {FIELDS.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <Loaded of={totals}>
        {({ first, second }) => (
          <>
            <Newest count={second.newest} />
            <Rows field={field} groups={first} costs={second.measures} />
          </>
        )}
      </Loaded>
      <p class="quiet">
        What sessions cost that cannot be trained on is part of the cost of those that can. Time of the engines is the
        sum over all calls, also of calls at the same time. Time of the sandboxes is the time from the lease to the
        result, of sessions that have a sandbox. CPU time is that of the nodes' own processes, and stored bytes are
        those of trajectories, records and artifacts, both without sessions that their node did not describe.
      </p>
    </>
  );
}

type RowsProps = {
  readonly field: Field;
  readonly groups: readonly SessionTotals[];
  readonly costs: readonly SessionMeasure[];
};

function Rows({ field, groups, costs }: RowsProps): JSX.Element {
  if (groups.length === 0) return <p class="quiet">No ended session matches, so there are no costs.</p>;
  const ordered = [...groups].sort((a, b) => perUsable(b, b.sampled_tokens) - perUsable(a, a.sampled_tokens));
  const heads = [field, 'Sessions', 'Usable', 'Sampled tokens', 'Engine time', 'Sandbox time'];
  const each = [
    'Tokens per usable',
    'Prompt tokens per usable',
    'Engine time per usable',
    'Sandbox time per usable',
    'Node CPU per usable',
    'Bytes per usable',
    'Trained of sampled',
  ];
  return (
    <div class="scroll">
      <Table heads={[...heads, ...each]}>
        {ordered.map((group) => {
          const { by, sessions, usable, sampled_tokens: sampled } = group;
          const value = by[field] ?? null;
          const [engine, sandbox] = [group.engine_seconds, group.sandbox_seconds];
          const own = new Map(measuresOf(costs, by).map(({ name, count }) => [name, count]));
          const perSample = (name: string): number | null => {
            const amount = own.get(name);
            return amount === undefined || usable === 0 ? null : amount / usable;
          };
          const [prompt, cpuUs, bytes] = [
            perSample('prompt_tokens'),
            perSample('node_cpu_us'),
            perSample('stored_bytes'),
          ];
          return (
            <tr key={value}>
              <th scope="row">{value ?? 'none'}</th>
              <td>
                <a href={sessionsWith({ [field]: value })}>{compact(sessions)}</a>
              </td>
              <td>
                {compact(usable)} ({percent(usable, sessions)})
              </td>
              <td>{compact(sampled)}</td>
              <td>{duration(engine * 1000)}</td>
              <td>{duration(sandbox * 1000)}</td>
              <td>{usable === 0 ? '–' : compact(Math.round(perUsable(group, sampled)))}</td>
              <td>{prompt === null ? '–' : compact(Math.round(prompt))}</td>
              <td>{usable === 0 ? '–' : duration(perUsable(group, engine) * 1000)}</td>
              <td>{usable === 0 ? '–' : duration(perUsable(group, sandbox) * 1000)}</td>
              <td>{duration(cpuUs === null ? null : cpuUs / 1000)}</td>
              <td>{bytes === null ? '–' : compact(Math.round(bytes))}</td>
              <td>{percent(group.trained_tokens, sampled)}</td>
            </tr>
          );
        })}
      </Table>
    </div>
  );
}

function perUsable({ usable }: SessionTotals, amount: number): number {
  return usable === 0 ? Number.POSITIVE_INFINITY : amount / usable;
}
