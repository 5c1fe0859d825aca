import type { SessionGrouping, SessionTotals } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { filtersIn } from '../filters.ts';
import { useQuery } from '../query.ts';
import { route, setParams } from '../route.ts';

/** Fields whose values are offered in a menu. */
const CHOICES = ['outcome', 'harness', 'source', 'trainer', 'version'] as const satisfies readonly SessionGrouping[];
/** Number of values of a menu; the filter in the address may be any other. */
const MAX_CHOICES = 200;

const NUMBERS = [
  ['min_reward', 'reward from'],
  ['max_reward', 'to'],
  ['min_turns', 'turns from'],
  ['max_turns', 'to'],
] as const;

type Change = (changes: Readonly<Record<string, string | null>>) => void;

/**
 * The filters of lists of sessions. They are read from `params` and written by `change`; by default, both use the parameters of the address. A
 * change also returns to the first page.
 */
export function FilterForm({
  label = 'Filters',
  params = route.value.params,
  change = setParams,
}: {
  readonly label?: string;
  readonly params?: URLSearchParams;
  readonly change?: Change;
}): JSX.Element {
  const filters = filtersIn(params);
  const set: Change = (changes) => change({ ...changes, after: null });
  return (
    <form class="filters" onSubmit={(event) => event.preventDefault()} aria-label={label}>
      {CHOICES.map((name) => (
        <Choice key={name} name={name} value={params.get(name) ?? ''} set={set} />
      ))}
      <label>
        messages with{' '}
        <input
          type="search"
          placeholder='words "a phrase"'
          value={params.get('text') ?? ''}
          onChange={(event) => set({ text: event.currentTarget.value })}
        />
      </label>
      <label>
        usable{' '}
        <select value={params.get('usable') ?? ''} onChange={(event) => set({ usable: event.currentTarget.value })}>
          <option value="">all</option>
          <option value="true">yes</option>
          <option value="false">no</option>
        </select>
      </label>
      {NUMBERS.map(([name, label]) => (
        <label key={name}>
          {label}{' '}
          <input
            class="number"
            inputMode="decimal"
            value={params.get(name) ?? ''}
            onChange={(event) => set({ [name]: event.currentTarget.value })}
          />
        </label>
      ))}
      {filters
        .filter(([name]) => !isShown(name))
        .map(([name, value]) => (
          <button type="button" key={name} onClick={() => set({ [name]: null })}>
            {name}: {value} ×
          </button>
        ))}
      {filters.length > 0 && (
        <button type="button" onClick={() => set(Object.fromEntries(filters.map(([name]) => [name, null])))}>
          Clear
        </button>
      )}
    </form>
  );
}

function isShown(name: string): boolean {
  return (
    name === 'usable' || name === 'text' || CHOICES.some((one) => one === name) || NUMBERS.some(([one]) => one === name)
  );
}

function Choice(props: {
  readonly name: (typeof CHOICES)[number];
  readonly value: string;
  readonly set: Change;
}): JSX.Element {
  const { name, value, set } = props;
  const totals = useQuery(
    `choices ${name}`,
    async (aborted) =>
      (await getJson<{ groups: readonly SessionTotals[] }>(`sessions/totals?by=${name}`, aborted)).groups,
  );
  const values = (totals.data ?? []).map(({ by }) => by[name] ?? 'none').slice(-MAX_CHOICES);
  return (
    <label>
      {name}{' '}
      <select value={value} onChange={(event) => set({ [name]: event.currentTarget.value })}>
        <option value="">all</option>
        {(values.includes(value) || value === '' ? values : [value, ...values]).map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
}
