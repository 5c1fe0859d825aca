import { FloeError, type HostPatterns, parseAs } from '@floe-rl/core';
import { z } from 'zod';

/** Matches a host pattern: a name, `*.` and a name, or an IPv6 address in brackets. Each may have a port. */
const HOST_PATTERN = /^(\*\.)?([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:\d{1,5})?$/;

const httpUrl = z.url({ protocol: /^https?$/ });

/** The settings in `plugins.services` of a node for searching and opening documents. */
const servicesSchema = z.object({
  search: z.string().min(1).optional(),
  search_key: z.string().min(1).optional(),
  search_embeddings: httpUrl.optional(),
  search_embeddings_key: z.string().min(1).optional(),
  page_hosts: z
    .string()
    .transform((text) =>
      text
        .toLowerCase()
        .split(/[\s,]+/)
        .filter((host) => host !== ''),
    )
    .refine((hosts) => hosts.every((host) => host === '*' || HOST_PATTERN.test(host)), {
      message: 'must be host names such as example.org or *.example.org, separated by commas, or * for all',
    })
    .optional(),
});

/** The source that a node searches: an index file or a web service. */
export type SearchSource =
  | {
      readonly kind: 'index';
      readonly path: string;
      /** The service that makes vectors of queries; `null` to search by words. */
      readonly embeddings: { readonly url: string; readonly key: string | null } | null;
    }
  | { readonly kind: 'http'; readonly url: string; readonly key: string | null };

export type SearchServices = {
  /** The source of the node's searches; `null` when the node has no search. */
  readonly source: SearchSource | null;
  /** Hosts whose pages agents may open. An empty list permits none; `null` permits all hosts of the Internet. */
  readonly pageHosts: HostPatterns | null;
};

/** Reads the search services of a node. Throws `schema_violation` with the path of a wrong setting. */
export function searchServices(services: Readonly<Record<string, string>>): SearchServices {
  const parsed = parseAs(servicesSchema, services, 'plugins.services', 'plugins.services');
  const hosts = parsed.page_hosts ?? [];
  return { source: sourceOf(parsed), pageHosts: hosts.includes('*') ? null : hosts };
}

/** Returns the source that the node searches. Throws `setup_failed` when it has none. */
export function requireSource({ source }: SearchServices, tool: string): SearchSource {
  if (source !== null) return source;
  const message = `the tool ${tool} needs plugins.services.search of the node: the path of an index made by \`floe index\`, or a URL`;
  throw new FloeError('setup_failed', message, { path: 'plugins.services.search' });
}

function sourceOf(services: z.output<typeof servicesSchema>): SearchSource | null {
  const { search, search_key: key, search_embeddings: url, search_embeddings_key: embeddingsKey } = services;
  if (search === undefined) return null;
  if (/^https?:/i.test(search)) {
    return { kind: 'http', url: parseAs(httpUrl, search, 'plugins.services.search'), key: key ?? null };
  }
  const embeddings = url === undefined ? null : { url, key: embeddingsKey ?? null };
  return { kind: 'index', path: search, embeddings };
}
