import type { SessionMeasure, SessionTotals } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { Badge, Loaded } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, percent } from '../../format.ts';
import { both, measuresOf, Newest, sessionsWith, useMeasures, useTotals } from './sums.tsx';

const BY = ['harness', 'dialect', 'engine'] as const;
const KINDS = ['link', 'drift', 'rendered', 'excluded'] as const;
/** Share of continued calls with other ids at which drift becomes a warning. */
const MUCH_DRIFT = 0.01;

/** How exactly each harness returns the context that the policy sampled in, by dialect and kind of engine. */
export function Fidelity({ query }: { query: string }): JSX.Element {
  const sums = both(useTotals(BY, query), useMeasures(KINDS, BY, query));
  return (
    <>
      <p class="quiet">
        A call is exact when its prompt begins with the ids of the call before it, and has drifted when it has an
        earlier reply with other ids than were sampled. Drift is the share of continued calls. Prompts are spliced from
        recorded ids, or rendered from messages for the reasons shown.
      </p>
      <Loaded of={sums}>
        {({ first, second }) => (
          <>
            <Newest count={second.newest} />
            <Rows totals={first} measures={second.measures} />
          </>
        )}
      </Loaded>
    </>
  );
}

function Rows(props: {
  readonly totals: readonly SessionTotals[];
  readonly measures: readonly SessionMeasure[];
}): JSX.Element {
  const { totals, measures } = props;
  if (totals.length === 0) return <p class="quiet">No ended session matches, so there is no fidelity to show.</p>;
  const heads = ['Harness', 'Dialect', 'Engine', 'Sessions', 'Sampled tokens', 'Trained', 'Exact calls', 'Drift'];
  return (
    <div class="scroll">
      <Table heads={[...heads, 'Causes of drift', 'Prompts', 'Tokens that are not trained']}>
        {totals.map((group) => (
          <Row key={Object.values(group.by).join(' ')} group={group} measures={measuresOf(measures, group.by)} />
        ))}
      </Table>
    </div>
  );
}

function Row({ group, measures }: { group: SessionTotals; measures: readonly SessionMeasure[] }): JSX.Element {
  const { by, sessions, sampled_tokens: sampled, trained_tokens: trained } = group;
  const filter = { harness: by.harness ?? null, dialect: by.dialect ?? null, engine: by.engine ?? null };
  const links = (name: string): number => measures.find((one) => one.of === 'link' && one.name === name)?.count ?? 0;
  const [exact, drifted] = [links('exact'), links('rerendered')];
  return (
    <tr>
      <th scope="row">{by.harness}</th>
      <td>{by.dialect ?? '–'}</td>
      <td>{by.engine ?? '–'}</td>
      <td>
        <a href={sessionsWith(filter)}>{compact(sessions)}</a>
      </td>
      <td>{compact(sampled)}</td>
      <td>{percent(trained, sampled)}</td>
      <td>{percent(exact, exact + drifted)}</td>
      <td>
        {drifted > 0 && drifted / (exact + drifted) >= MUCH_DRIFT ? (
          <Badge tone="warn">{percent(drifted, exact + drifted)}</Badge>
        ) : (
          percent(drifted, exact + drifted)
        )}
      </td>
      <td>
        <Counts of="drift" measures={measures} filter={filter} />
      </td>
      <td>
        <Counts of="rendered" measures={measures} filter={filter} />
      </td>
      <td>
        <Counts of="excluded" measures={measures} filter={filter} />
      </td>
    </tr>
  );
}

/** The counts of one kind, each as a link to the sessions that have it. */
function Counts(props: {
  readonly of: (typeof KINDS)[number];
  readonly measures: readonly SessionMeasure[];
  readonly filter: Readonly<Record<string, string | null>>;
}): JSX.Element {
  const { of, measures, filter } = props;
  const counts = measures.filter((one) => one.of === of).sort((a, b) => b.count - a.count);
  if (counts.length === 0) return <>–</>;
  return (
    <ul class="counts">
      {counts.map(({ name, count }) => (
        <li key={name}>
          <a href={sessionsWith({ ...filter, measure: `${of}:${name}` })}>{name}</a> {compact(count)}
        </li>
      ))}
    </ul>
  );
}
