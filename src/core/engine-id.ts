const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'http:': '80', 'https:': '443' };

/** The id of an engine that was given none: host, port and path of its URL, in characters that ids may have. */
export function engineIdOf(baseUrl: string): string {
  const url = new URL(baseUrl);
  return `${url.hostname}-${url.port || DEFAULT_PORTS[url.protocol]}${url.pathname}`
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+|-+$/g, '');
}
