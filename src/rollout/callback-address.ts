import { lookup as resolve } from 'node:dns';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import { FloeError } from '../core/errors.ts';
import type { RolloutConfig } from './config.ts';

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/** Never a trainer: link-local addresses (cloud metadata services live there), multicast and "this host". */
const FORBIDDEN = new BlockList();
FORBIDDEN.addSubnet('0.0.0.0', 8, 'ipv4');
FORBIDDEN.addSubnet('169.254.0.0', 16, 'ipv4');
FORBIDDEN.addSubnet('224.0.0.0', 3, 'ipv4');
FORBIDDEN.addAddress('::', 'ipv6');
FORBIDDEN.addSubnet('fe80::', 10, 'ipv6');
FORBIDDEN.addSubnet('ff00::', 8, 'ipv6');

export function isLoopbackAddress(address: string): boolean {
  return inList(LOOPBACK, address);
}

/** Whether a listener on this host name can be reached from this machine only. */
export function isLoopbackHost(host: string): boolean {
  return host === 'localhost' || (isIP(host) !== 0 && isLoopbackAddress(host));
}

/** Throws `schema_violation` when the configuration does not let callbacks go to this URL. Names are resolved at delivery. */
export function checkCallbackUrl(config: RolloutConfig, callbackUrl: string): void {
  const url = new URL(callbackUrl);
  const host = url.hostname.replace(/^\[|\]$/g, '');
  const refuse = (message: string): never => {
    throw new FloeError('schema_violation', `task: callback_url: ${message}`, {
      issues: [{ path: 'callback_url', message }],
    });
  };
  if (url.protocol !== 'http:' && url.protocol !== 'https:') refuse('must be http or https');
  if (url.username !== '' || url.password !== '') refuse('must not hold a user name or password');
  if (config.callback_hosts !== null) {
    if (!config.callback_hosts.includes(host)) refuse(`host ${host} is not in callback_hosts`);
    return;
  }
  if (isLoopbackHost(config.host) && host !== 'localhost' && isIP(host) === 0) {
    refuse(`host ${host} is not loopback; name it in callback_hosts to allow it`);
  }
  if (isIP(host) !== 0) {
    const reason = addressRefusal(config, host);
    if (reason !== null) refuse(reason);
  }
}

/** A DNS lookup that fails on addresses that callbacks may not go to. The connection uses the very address that was checked. */
export function checkedLookup(config: RolloutConfig): LookupFunction {
  return (hostname, options, done) => {
    resolve(hostname, { ...options, all: true }, (error, addresses) => {
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

function addressRefusal(config: RolloutConfig, address: string): string | null {
  if (config.callback_hosts === null && isLoopbackHost(config.host) && !isLoopbackAddress(address)) {
    return `${address} is not loopback; name its host in callback_hosts to allow it`;
  }
  return inList(FORBIDDEN, address) ? `${address} is a link-local, multicast or unspecified address` : null;
}

function inList(list: BlockList, address: string): boolean {
  return list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
}
