import { hostname, networkInterfaces } from 'node:os';

/** Whether a server is on this host: a loopback name or address, the host's name or one of its addresses. */
export function isLocal(baseUrl: string, ownNames: ReadonlySet<string> = ownNamesNow()): boolean {
  const host = new URL(baseUrl).hostname.replace(/^\[|\]$/g, '').toLowerCase();
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host) || ownNames.has(host);
}

function ownNamesNow(): ReadonlySet<string> {
  const addresses = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  return new Set([hostname().toLowerCase(), ...addresses.map(({ address }) => address.toLowerCase())]);
}
