import type { BatchStaleness, BatchStreamView } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../../api.ts';
import { type Column, Columns } from '../../components/charts.tsx';
import { Figure, Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, percent } from '../../format.ts';
import { useQuery } from '../../query.ts';
import { route, setParams } from '../../route.ts';

const BATCHES = 50;
const REFRESH = { nextMs: () => 10_000 };

/** Shows how old the samples of batches were when they were handed out, and the bound of their stream. */
export function Staleness(): JSX.Element {
  const streams = useQuery(
    'streams',
    async (aborted) =>
      (await getJson<{ streams: readonly BatchStreamView[] }>('rollout/batches', aborted)).streams.map(
        ({ batch_id: id }) => id,
      ),
    REFRESH,
  );
  return (
    <>
      <p class="quiet">
        Of batch streams, whatever the filters above. A sample is as old as the number of policy steps from the version
        of its first token to the version that the trainer named when it requested the batch.
      </p>
      <Loaded of={streams}>{(ids) => <Streams ids={ids} />}</Loaded>
    </>
  );
}

function Streams({ ids }: { ids: readonly string[] }): JSX.Element {
  const chosen = route.value.params.get('stream') ?? ids[0];
  if (chosen === undefined) {
    return <p class="quiet">There is no batch stream. Trainers create one with POST /rollout/batches.</p>;
  }
  const shown = ids.includes(chosen) ? ids : [chosen, ...ids];
  return (
    <>
      <label>
        stream{' '}
        <select value={chosen} onChange={(event) => setParams({ stream: event.currentTarget.value })}>
          {shown.map((id) => (
            <option key={id} value={id}>
              {id}
            </option>
          ))}
        </select>
      </label>
      <Stream id={chosen} key={chosen} />
    </>
  );
}

function Stream({ id }: { id: string }): JSX.Element {
  const staleness = useQuery(
    `staleness ${id}`,
    (aborted) =>
      getJson<BatchStaleness>(`rollout/batches/${encodeURIComponent(id)}/staleness?limit=${BATCHES}`, aborted),
    REFRESH,
  );
  return <Loaded of={staleness}>{(data) => <Distribution {...data} />}</Loaded>;
}

function Distribution({ batches, max_staleness: bound }: BatchStaleness): JSX.Element {
  if (batches.length === 0) return <p class="quiet">The stream has handed out no batch yet.</p>;
  const counts = new Map<string, number>();
  for (const { samples } of batches) {
    for (const [steps, count] of Object.entries(samples)) counts.set(steps, (counts.get(steps) ?? 0) + count);
  }
  const all = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const isOver = (steps: string): boolean => bound !== null && Number(steps) > bound;
  const over = [...counts].reduce((sum, [steps, count]) => sum + (isOver(steps) ? count : 0), 0);
  const ordered = [...counts].sort(([a], [b]) => Number(a) - Number(b) || (a < b ? -1 : 1));
  return (
    <>
      <div class="figures">
        <Figure label="bound" value={bound ?? 'none'} note="max_staleness, in policy steps" />
        <Figure
          label="over the bound"
          value={percent(over, all)}
          note={`${compact(over)} of ${compact(all)} samples`}
        />
        <Figure label="batches" value={compact(batches.length)} note="the newest" />
      </div>
      {over > 0 && (
        <p class="verdict warn">
          Groups are started again when they are older than the bound, so samples over it come from engines that still
          had older weights when the group was started.
        </p>
      )}
      <div class="charts">
        <Columns title="Samples by staleness in policy steps" columns={ordered.map((one) => columnOf(one, isOver))} />
        <Columns title="Samples by batch" columns={[...batches].reverse().map((batch) => batchColumn(batch, isOver))} />
      </div>
      <Table heads={['Policy steps', 'Samples', 'Share']}>
        {ordered.map(([steps, count]) => (
          <tr key={steps}>
            <th scope="row">{steps}</th>
            <td>{compact(count)}</td>
            <td>{percent(count, all)}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function columnOf([steps, count]: [string, number], isOver: (steps: string) => boolean): Column {
  const tone = isOver(steps) ? ('bad' as const) : ('model' as const);
  return { label: steps, parts: [{ name: isOver(steps) ? 'over the bound' : 'samples', count, tone }] };
}

function batchColumn(
  { batch, samples }: BatchStaleness['batches'][number],
  isOver: (steps: string) => boolean,
): Column {
  const all = Object.values(samples).reduce((sum, count) => sum + count, 0);
  const over = Object.entries(samples).reduce((sum, [steps, count]) => sum + (isOver(steps) ? count : 0), 0);
  const parts = [
    { name: 'within the bound', count: all - over, tone: 'model' as const },
    { name: 'over the bound', count: over, tone: 'bad' as const },
  ];
  return { label: `batch ${batch}`, parts };
}
