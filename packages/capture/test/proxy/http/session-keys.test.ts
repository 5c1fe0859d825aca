import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { KeyRing } from '../../../src/proxy/session/keys.ts';
import type { ProxySession } from '../../../src/proxy/session/session.ts';
import { chatBody, Rig } from '../rig.ts';

/** A session key as floe makes it: 32 bytes in base64url. The last of its 43 characters has two bits that are not part of the bytes. */
const KEY = 'aB3dEfGh1jKlMnOpQrStUvWxYz0123456789-_AbCdE';
const PATH = '/v1/chat/completions';

const NEAR_MISSES: readonly (readonly [name: string, key: string])[] = [
  ['has another first character', `b${KEY.slice(1)}`],
  ['has another character in the middle', `${KEY.slice(0, 20)}x${KEY.slice(21)}`],
  ['has another last character', `${KEY.slice(0, -1)}x`],
  ['has another last character and decodes to the same bytes', `${KEY.slice(0, -1)}F`],
  ['has two characters exchanged', `Ba${KEY.slice(2)}`],
  ['lacks the first character', KEY.slice(1)],
  ['lacks the last character', KEY.slice(0, -1)],
  ['is the first half', KEY.slice(0, 21)],
  ['is one character', KEY.slice(0, 1)],
  ['has one more character', `${KEY}A`],
  ['has padding', `${KEY}=`],
  ['is the key twice', `${KEY}${KEY}`],
  ['is in lower case', KEY.toLowerCase()],
  ['is in upper case', KEY.toUpperCase()],
  ['has one letter in the other case', `${KEY.slice(0, 1)}b${KEY.slice(2)}`],
  ['has the alphabet of base64', KEY.replace('-', '+').replace('_', '/')],
  ['is empty', ''],
];

const PLACES: readonly (readonly [name: string, request: (key: string) => { path: string; headers?: object }])[] = [
  ['the path', (key) => ({ path: `/s/${key}${PATH}` })],
  ['a bearer token', (key) => ({ path: PATH, headers: { authorization: `Bearer ${key}` } })],
  ['x-api-key', (key) => ({ path: PATH, headers: { 'x-api-key': key } })],
  ['x-goog-api-key', (key) => ({ path: PATH, headers: { 'x-goog-api-key': key } })],
  ['the query', (key) => ({ path: `${PATH}?key=${encodeURIComponent(key)}` })],
];

let rig: Rig;
let session: ProxySession;
let directory: string;
let socketPath: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'floe-keys-'));
  socketPath = join(directory, 's.sock');
  rig = await Rig.start();
  session = await rig.open({ key: KEY, socketPath });
});
afterEach(async () => {
  await rig.stop();
  await rm(directory, { recursive: true });
});

/**
 * For each entry of PLACES, sends a request with the key in this place over TCP, and another over the session's socket. Returns the
 * statuses of the replies by place.
 */
async function statuses(key: string): Promise<Record<string, (number | undefined)[]>> {
  const replies = PLACES.map(async ([name, request]) => {
    const sent = { body: chatBody(), ...(request(key) as { path: string; headers?: Record<string, string> }) };
    const both = [rig.send(sent).reply, rig.send({ ...sent, socketPath }).reply];
    return [name, (await Promise.all(both)).map(({ status }) => status)] as const;
  });
  return Object.fromEntries(await Promise.all(replies));
}

const everywhere = (status: number): Record<string, number[]> =>
  Object.fromEntries(PLACES.map(([name]) => [name, [status, status]]));

describe('a key', () => {
  it('opens its session in each place', async () => {
    expect(KEY).toHaveLength(43);
    expect(await statuses(KEY)).toEqual(everywhere(200));
    expect(session.requests).toBe(2 * PLACES.length);
  });

  it.each(NEAR_MISSES)('that %s is refused in each place', async (_, key) => {
    expect(key).not.toBe(KEY);
    expect(await statuses(key)).toEqual(everywhere(401));
    expect(session.requests).toBe(0);
    expect(rig.server.chats).toEqual([]);
  });

  it('that differs in any one character is refused', () => {
    const keys = new KeyRing<string>();
    keys.add(KEY, 'the session');
    expect(keys.find(KEY)).toBe('the session');
    const characters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    for (let at = 0; at < KEY.length; at++) {
      for (const character of characters) {
        const key = `${KEY.slice(0, at)}${character}${KEY.slice(at + 1)}`;
        if (key !== KEY) expect(() => keys.find(key)).toThrow('the session key is not known');
      }
    }
  });

  it('of another session does not open this one', async () => {
    const other = `${KEY.slice(0, -1)}I`;
    const opened = await rig.open({ key: other, sessionId: 'ses_2' });
    const perPlace = Object.fromEntries(PLACES.map(([name]) => [name, [200, 401]]));
    expect(await statuses(other)).toEqual(perPlace);
    expect([session.requests, opened.requests]).toEqual([0, PLACES.length]);
  });

  it('of an ended session opens neither this one nor another one whose key differs in one character', async () => {
    await rig.open({ key: `${KEY.slice(0, -1)}I`, sessionId: 'ses_2' });
    await session.close();
    const late = await rig.send({ path: PATH, headers: { 'x-api-key': KEY }, body: chatBody() }).reply;
    expect(late.status).toBe(410);
    expect(rig.server.chats).toEqual([]);
  });
});
