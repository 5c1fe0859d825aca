import { lookup as resolve } from 'node:dns';
import type { LookupFunction } from 'node:net';
import { addressKind } from './network-address.ts';

/** Ports that a pattern without a port allows. */
const WEB_PORTS: readonly number[] = [80, 443];

/** A host and port that a sandbox asks for. `host` has lower-case letters, no brackets and no final dot. */
export type EgressTarget = { readonly host: string; readonly port: number };

/**
 * Hosts that sandboxes may reach: names (`pypi.org`), names with everything below them (`*.pypi.org`) and addresses, each with an optional
 * port (`internal:8443`). Without a port, the ports 80 and 443 are allowed.
 */
export type HostPatterns = readonly string[];

export type EgressRules = {
  /** Hosts that the operator of the node allows; `null` for all hosts of the Internet. */
  readonly node: HostPatterns | null;
  /** Hosts that the task allows; `null` for all that the node allows. */
  readonly task: HostPatterns | null;
};

/** Parses the host and the port of a request's target; `null` when it has none. `defaultPort` is used when it has no port. */
export function parseTarget(text: string, defaultPort: number | null): EgressTarget | null {
  const [, bracketed, plain, portText] = /^(?:\[([0-9a-fA-F:.]+)\]|([^:/?#@\s[\]]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  const host = (bracketed ?? plain)?.toLowerCase().replace(/\.$/, '');
  const port = portText === undefined ? defaultPort : Number(portText);
  if (host === undefined || host === '' || port === null || port > 65_535) return null;
  return { host, port };
}

/** Returns why a sandbox may not reach the target; `null` when it may, as far as its name shows. */
export function refusalOf({ node, task }: EgressRules, target: EgressTarget): string | null {
  const name = `${target.host}:${target.port}`;
  if (task !== null && !task.some((pattern) => matches(pattern, target))) return `the task does not allow ${name}`;
  if (node === null)
    return WEB_PORTS.includes(target.port) ? null : `this node allows no port but ${WEB_PORTS.join(' and ')}`;
  return node.some((pattern) => matches(pattern, target)) ? null : `this node does not allow ${name}`;
}

/**
 * Returns a DNS lookup that fails when the target has an address that the sandbox may not reach. Link-local and metadata addresses are always
 * refused. Addresses of this machine and of private networks are refused unless the operator has listed the host itself. The connection is
 * made to the addresses that were checked.
 */
export function checkedLookup(
  rules: EgressRules,
  target: EgressTarget,
  lookupName: typeof resolve = resolve,
): LookupFunction {
  const isListed = rules.node?.some((pattern) => !pattern.startsWith('*.') && matches(pattern, target)) === true;
  return (hostname, options, done) => {
    lookupName(hostname, { ...options, all: true }, (error, addresses) => {
      if (error !== null) return done(error, '', 0);
      for (const { address } of addresses) {
        const kind = addressKind(address);
        if (kind === 'public' || (kind !== 'forbidden' && isListed)) continue;
        return done(new RefusedAddress(`${hostname} has the ${kind} address ${address}`), '', 0);
      }
      const [first] = addresses;
      if (first === undefined) return done(new Error(`${hostname} has no address`), '', 0);
      if (options.all === true) return done(null, addresses);
      done(null, first.address, first.family);
    });
  };
}

/** The error of a lookup whose result a sandbox may not reach. */
export class RefusedAddress extends Error {}

function matches(pattern: string, { host, port }: EgressTarget): boolean {
  const allowed = parseTarget(pattern.startsWith('*.') ? pattern.slice(2) : pattern, 0);
  if (allowed === null) return false;
  if (allowed.port === 0 ? !WEB_PORTS.includes(port) : allowed.port !== port) return false;
  return pattern.startsWith('*.') ? host.endsWith(`.${allowed.host}`) : host === allowed.host;
}
