/** Parameters of the address that are not filters of the API. They choose how a view shows the sessions that match. */
const OF_VIEW = ['order', 'after', 'by', 'tool', 'stream'];

/** Returns the filters in the address. They have the names of the API's query parameters; the API refuses any other name. */
export function filtersIn(params: URLSearchParams): readonly (readonly [name: string, value: string])[] {
  return [...params].filter(([name, value]) => value !== '' && !OF_VIEW.includes(name));
}

/** Returns the filters in the address as a query of the API, with other parameters added. Parameters that are `null` are left out. */
export function queryOf(params: URLSearchParams, more: Readonly<Record<string, string | null>> = {}): string {
  const added = Object.entries(more).filter((entry): entry is [string, string] => entry[1] !== null);
  return new URLSearchParams([...filtersIn(params), ...added].map(([name, value]) => [name, value])).toString();
}
