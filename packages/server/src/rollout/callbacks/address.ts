import { lookup as resolve } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { addressKind, isLoopbackHost } from '@floe-rl/core';
import type { RolloutConfig } from '../config.ts';
import { bodyError } from '../field-errors.ts';

/**
 * Throws `schema_violation` when the configuration does not allow this server to send requests to a URL that a client gave, such as a
 * callback's URL. `path` is the URL's field in the request. A host name is not resolved here but when a request is sent.
 */
export function checkOutboundUrl(config: RolloutConfig, text: string, path: string): void {
  const url = new URL(text);
  const host = plainHost(url.hostname);
  if (url.protocol !== 'http:' && url.protocol !== 'https:') throw bodyError(path, 'must be http or https');
  if (url.username !== '' || url.password !== '') throw bodyError(path, 'must not hold a user name or password');
  if (config.callback_hosts !== null) {
    if (!config.callback_hosts.includes(host)) throw bodyError(path, `host ${host} is not in callback_hosts`);
    return;
  }
  if (isLoopbackHost(config.host) && host !== 'localhost' && isIP(host) === 0) {
    throw bodyError(path, `host ${host} is not loopback; name it in callback_hosts to allow it`);
  }
  if (!isLoopbackHost(config.host) && host === 'localhost') {
    throw bodyError(path, `host ${host} is the machine of this server; name it in callback_hosts to allow it`);
  }
  if (isIP(host) !== 0) {
    const reason = addressRefusal(config, host);
    if (reason !== null) throw bodyError(path, reason);
  }
}

/** Returns a URL's host name without the brackets of an IPv6 address, and without a final dot. Names below `localhost` are `localhost`. */
function plainHost(hostname: string): string {
  const host = hostname.replace(/[[\]]/g, '').replace(/\.$/, '');
  return host.endsWith('.localhost') ? 'localhost' : host;
}

/**
 * Returns a DNS lookup that fails when a name resolves to an address to which callbacks may not be sent. The connection uses the addresses
 * that were checked, so a name that resolves to another address at the next lookup cannot bypass the check.
 */
export function checkedLookup(config: RolloutConfig, lookupName: typeof resolve = resolve): LookupFunction {
  return (hostname, options, done) => {
    lookupName(hostname, { ...options, all: true }, (error, addresses) => {
      if (error !== null) return done(error, '', 0);
      for (const { address } of addresses) {
        const reason = addressRefusal(config, address);
        if (reason !== null) return done(new Error(`${hostname}: ${reason}`), '', 0);
      }
      const first = addresses[0];
      if (first === undefined) return done(new Error(`${hostname} has no address`), '', 0);
      if (options.all === true) return done(null, addresses);
      done(null, first.address, first.family);
    });
  };
}

/** Returns why callbacks may not be sent to an address; `null` when they may. */
function addressRefusal(config: RolloutConfig, given: string): string | null {
  const kind = addressKind(given);
  if (kind === 'forbidden') return `${given} is a link-local, metadata, multicast or unspecified address`;
  if (config.callback_hosts !== null) return null;
  const loopback = kind === 'loopback';
  if (isLoopbackHost(config.host)) {
    return loopback ? null : `${given} is not loopback; name its host in callback_hosts to allow it`;
  }
  return loopback ? `${given} is the machine of this server; name its host in callback_hosts to allow it` : null;
}
