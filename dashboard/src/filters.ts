/** Parameters of the address that are no filters of the API, but choose what a view shows of the sessions that match. */
const OF_VIEW = ['order', 'after', 'by', 'tool', 'stream'];

/** Returns the filters in the address. Their names are those of the API, which refuses any other. */
export function filtersIn(params: URLSearchParams): readonly (readonly [name: string, value: string])[] {
  return [...params].filter(([name, value]) => value !== '' && !OF_VIEW.includes(name));
}

/** Returns the filters in the address as a query of the API, with other parameters added. Those that are `null` are left out. */
export function queryOf(params: URLSearchParams, more: Readonly<Record<string, string | null>> = {}): string {
  const added = Object.entries(more).filter((entry): entry is [string, string] => entry[1] !== null);
  return new URLSearchParams([...filtersIn(params), ...added].map(([name, value]) => [name, value])).toString();
}
