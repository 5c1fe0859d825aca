import { hostname } from 'node:os';
import { describe, expect, it } from 'vitest';
import { ownAddress } from '../../../src/gateway/node/own-address.ts';

describe('ownAddress', () => {
  it('returns the address from which packets to the server are sent', async () => {
    expect(await ownAddress('http://127.0.0.1:8080')).toBe('127.0.0.1');
  });

  it('uses the first of several servers, and the host name for an empty folder of servers', async () => {
    expect(await ownAddress('http://127.0.0.1:8080,http://no-such-host.invalid:8080')).toBe('127.0.0.1');
    expect(await ownAddress('file:///no/such/folder')).toBe(hostname());
  });

  it('returns the host name when the name of the server does not resolve', async () => {
    expect(await ownAddress('http://no-such-host.invalid:8080')).toBe(hostname());
  });
});
