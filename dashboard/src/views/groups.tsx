import type { GroupFacts, GroupFactsPage } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { FilterForm } from '../components/filter-form.tsx';
import { Badge, Loaded } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { queryOf } from '../filters.ts';
import { rewardText, timeText } from '../format.ts';
import { useQuery } from '../query.ts';
import { linkTo, route, setParams } from '../route.ts';

const PAGE = 100;

/** The groups of samples, and which of them have rewards that a trainer can learn from. */
export function Groups(): JSX.Element {
  const { params } = route.value;
  const query = queryOf(params, { after: params.get('after'), limit: String(PAGE) });
  const groups = useQuery(`groups ${query}`, (aborted) => getJson<GroupFactsPage>(`groups?${query}`, aborted));
  return (
    <>
      <h1>Groups</h1>
      <FilterForm />
      <Loaded of={groups}>{(page) => <List page={page} />}</Loaded>
    </>
  );
}

function List({ page: { groups, next } }: { page: GroupFactsPage }): JSX.Element {
  if (groups.length === 0) return <p class="quiet">No group has an ended session that matches.</p>;
  const degenerate = groups.filter((group) => group.is_degenerate).length;
  return (
    <>
      <p>
        {degenerate} of these {groups.length} groups teach nothing, because all their usable samples have the same
        reward.
      </p>
      <Table heads={['Task', 'Harness', 'Source', 'Ended', 'Sessions', 'Usable', 'Mean reward', 'Range', 'Signal']}>
        {groups.map((group) => (
          <tr key={group.task_id}>
            <td>
              <a href={linkTo(['tasks', group.task_id])}>{group.task_id}</a>
            </td>
            <td>{group.harness}</td>
            <td>{group.source ?? '–'}</td>
            <td>{timeText(group.ended_at)}</td>
            <td>{group.sessions}</td>
            <td>{group.usable}</td>
            <td>{rewardText(group.reward_mean)}</td>
            <td>
              {rewardText(group.reward_min)} to {rewardText(group.reward_max)}
            </td>
            <td>
              <Signal group={group} />
            </td>
          </tr>
        ))}
      </Table>
      {next !== null && (
        <button type="button" onClick={() => setParams({ after: next })}>
          Next page
        </button>
      )}
    </>
  );
}

function Signal({ group }: { group: GroupFacts }): JSX.Element {
  if (group.is_degenerate) return <Badge tone="warn">all rewards are equal</Badge>;
  if (group.usable === 0) return <Badge tone="bad">no usable sample</Badge>;
  if (group.usable === 1) return <Badge tone="warn">one usable sample</Badge>;
  return <Badge tone="good">rewards differ</Badge>;
}
