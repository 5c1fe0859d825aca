import { signal } from '@preact/signals';

/** The place in the page: the path and the parameters in the fragment of the address, such as `#/sessions?outcome=completed`. */
export type Route = { readonly path: readonly string[]; readonly params: URLSearchParams };

export const route = signal<Route>(parse(location.hash));

window.addEventListener('hashchange', () => {
  route.value = parse(location.hash);
});

function parse(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#/, '').split('?', 2);
  return {
    path: path
      .split('/')
      .filter((part) => part !== '')
      .map(decodePart),
    params: new URLSearchParams(query),
  };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the address of a place on the page. Parameters that are empty are left out. */
export function linkTo(path: readonly string[], params: Readonly<Record<string, string | null>> = {}): string {
  const query = new URLSearchParams(
    Object.entries(params).filter((entry): entry is [string, string] => entry[1] !== null && entry[1] !== ''),
  ).toString();
  return `#/${path.map(encodeURIComponent).join('/')}${query === '' ? '' : `?${query}`}`;
}

/** Changes parameters of the present place, so that the address holds every filter. An empty value or `null` removes one. */
export function setParams(changes: Readonly<Record<string, string | null>>): void {
  const { path, params } = route.value;
  location.replace(linkTo(path, { ...Object.fromEntries(params), ...changes }));
}
