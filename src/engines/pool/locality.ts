import { hostname, networkInterfaces } from 'node:os';

/** Whether a server is on this host: a loopback name or address, the host's name or one of its addresses. */
export function isLocal(baseUrl: string, names: ReadonlySet<string> = ownNames(null)): boolean {
  const host = new URL(baseUrl).hostname.replace(/^\[|\]$/g, '').toLowerCase();
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host) || names.has(host);
}

/** What this host is called: the name that its operator gives, its own, and its addresses. */
export function ownNames(given: string | null): ReadonlySet<string> {
  const addresses = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  const names = [hostname(), ...(given === null ? [] : [given]), ...addresses.map(({ address }) => address)];
  return new Set(names.map((name) => name.toLowerCase()));
}
