import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { storageOf } from '../../src/commands/server-options.ts';

const SECRET_URL = 'postgres://floe:secret@db/floe';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-storage-'));
  vi.stubEnv('FLOE_DATABASE_URL', '');
  vi.stubEnv('FLOE_BLOBS', '');
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(dir, { recursive: true });
});

describe('storageOf', () => {
  it('returns an embedded database by default', () => {
    expect(storageOf({})).toEqual({ database: null, blobs: null });
  });

  it('prefers options to the environment', () => {
    vi.stubEnv('FLOE_DATABASE_URL', SECRET_URL);
    vi.stubEnv('FLOE_BLOBS', 's3://bucket');
    expect(storageOf({})).toEqual({ database: SECRET_URL, blobs: 's3://bucket' });
    const options = { database: 'postgres://floe@db/other', blobs: '/data/blobs' };
    expect(storageOf(options)).toEqual(options);
  });

  it('refuses a password in the arguments, and does not repeat it', () => {
    for (const database of [SECRET_URL, 'postgres://db/floe?user=floe&password=secret']) {
      let message = '';
      try {
        storageOf({ database });
      } catch (thrown) {
        expect(thrown).toMatchObject({ code: 'bad_request' });
        message = String(thrown);
      }
      expect(message).toContain('--database-file');
      expect(message).not.toContain('secret');
    }
  });

  it('reads a URL with a password from a file', async () => {
    const file = join(dir, 'database');
    await writeFile(file, `${SECRET_URL}\n`);
    expect(storageOf({ databaseFile: file }).database).toBe(SECRET_URL);
    expect(() => storageOf({ databaseFile: join(dir, 'missing') })).toThrow(
      expect.objectContaining({ code: 'bad_request', message: expect.stringContaining('--database-file') }),
    );
    expect(() => storageOf({ database: 'postgres://db/floe', databaseFile: file })).toThrow(
      expect.objectContaining({ code: 'bad_request' }),
    );
  });
});
