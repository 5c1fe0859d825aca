import { hostname } from 'node:os';
import { describe, expect, it } from 'vitest';
import { ownAddress } from '../../../src/gateway/node/own-address.ts';

describe('ownAddress', () => {
  it('is the one that packets to the server come from', async () => {
    expect(await ownAddress('http://127.0.0.1:8080')).toBe('127.0.0.1');
  });

  it('is found from several servers, and from a folder that is still empty', async () => {
    expect(await ownAddress('http://127.0.0.1:8080,http://no-such-host.invalid:8080')).toBe('127.0.0.1');
    expect(await ownAddress('file:///no/such/folder')).toBe(hostname());
  });

  it('is the host name while the server cannot be found', async () => {
    expect(await ownAddress('http://no-such-host.invalid:8080')).toBe(hostname());
  });
});
