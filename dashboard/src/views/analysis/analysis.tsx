import type { JSX } from 'preact';
import { FilterForm } from '../../components/filter-form.tsx';
import { filtersIn, queryOf } from '../../filters.ts';
import { linkTo, route } from '../../route.ts';
import { Cost } from './cost.tsx';
import { Fidelity } from './fidelity.tsx';
import { Rewards } from './rewards.tsx';
import { Staleness } from './staleness.tsx';
import { Timeline } from './timeline.tsx';
import { Tools } from './tools.tsx';

const PARTS = {
  fidelity: Fidelity,
  cost: Cost,
  tools: Tools,
  rewards: Rewards,
  timeline: Timeline,
  staleness: Staleness,
} as const;

/** Sums over many ended sessions, in parts that share the filters. */
export function Analysis({ part = 'fidelity' }: { part: string | undefined }): JSX.Element {
  const { params } = route.value;
  const Part = PARTS[part as keyof typeof PARTS];
  const filters = Object.fromEntries(filtersIn(params));
  return (
    <>
      <h1>Analysis</h1>
      <nav class="tabs" aria-label="Parts of the analysis">
        {Object.keys(PARTS).map((name) => (
          <a key={name} href={linkTo(['analysis', name], filters)} aria-current={name === part ? 'page' : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <FilterForm />
      {Part === undefined ? <p class="failure">The analysis has no part {part}.</p> : <Part query={queryOf(params)} />}
    </>
  );
}
