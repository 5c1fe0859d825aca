import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { findUser } from '../../src/box/users.ts';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-users-'));
  await writeFile(join(dir, 'passwd'), 'root:x:0:0::/root:/bin/sh\ndev:x:1000:1001::/home/dev:/bin/sh\n\nbroken\n');
  await writeFile(join(dir, 'group'), 'root:x:0:\nstaff:x:50:dev\n');
});
afterAll(() => rm(dir, { recursive: true }));

describe('the user of an image', () => {
  it.each([
    ['dev', { uid: 1000, gid: 1001, name: 'dev' }],
    ['1000', { uid: 1000, gid: 1001, name: 'dev' }],
    ['dev:staff', { uid: 1000, gid: 50, name: 'dev' }],
    ['dev:7', { uid: 1000, gid: 7, name: 'dev' }],
    ['4000', { uid: 4000, gid: 0, name: null }],
    ['4000:50', { uid: 4000, gid: 50, name: null }],
    ['root', { uid: 0, gid: 0, name: 'root' }],
  ])('is found as a container engine does: %s', async (wanted, user) => {
    expect(await findUser(wanted, dir)).toEqual(user);
  });

  it.each(['ghost', 'dev:ghosts', 'broken', ''])('is not found when the image lacks it: %j', async (wanted) => {
    expect(await findUser(wanted, dir)).toBeNull();
  });

  it('is found by its number in an image without a list of users', async () => {
    expect(await findUser('12', join(dir, 'none'))).toEqual({ uid: 12, gid: 0, name: null });
    expect(await findUser('dev', join(dir, 'none'))).toBeNull();
  });
});
