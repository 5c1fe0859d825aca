import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { systemClock } from '@floe-rl/core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { parseS3Location, S3BlobStore } from '../../../../src/store/blobs/s3.ts';
import { describeBlobs } from '../../../store/blobs/blob-store-contract.ts';
import { type S3Server, s3Missing, startS3 } from '../../../store/blobs/s3-server.ts';

describe('S3BlobStore', () => {
  describeIf(s3Missing(), 'a real S3 server', () => {
    let server: S3Server;
    let places = 0;
    beforeAll(async () => {
      server = await startS3();
    });
    afterAll(() => server?.close());

    describeBlobs('S3BlobStore', async () => {
      const prefix = `place-${places++}/deep`;
      const open = () => S3BlobStore.open(server.url(prefix), systemClock);
      return {
        store: await open(),
        again: open,
        fileOf: (ref) => join(server.bucketDir, prefix, ref.slice(0, 2), ref),
      };
    });

    it('lists all pages, and leaves out objects that are not blobs', async () => {
      const store = await S3BlobStore.open(server.url('pages'), systemClock);
      const other = await S3BlobStore.open(server.url('pages-of-another'), systemClock);
      await other.put(Buffer.from('not in this place'));
      const { ref } = await store.put(Buffer.from('first'));
      await writeFile(join(server.bucketDir, 'pages', ref.slice(0, 2), 'notes.txt'), 'x');
      const refs = new Set([ref]);
      // A listing has 1000 names per page, so 1100 blobs need two pages.
      for (let batch = 0; batch < 11; batch++) {
        const blobs = await Promise.all(Array.from({ length: 100 }, (_, i) => store.put(Buffer.from(`${batch}-${i}`))));
        for (const blob of blobs) refs.add(blob.ref);
      }
      const found: string[] = [];
      for await (const name of store.olderThan(Number.MAX_SAFE_INTEGER)) found.push(name);
      expect(found).toHaveLength(1101);
      expect(new Set(found)).toEqual(refs);
      await Promise.all([store.close(), other.close()]);
    });

    it('causes store_unavailable while it is down, and works once it is back', async () => {
      const store = await S3BlobStore.open(server.url('down'), systemClock);
      const { ref } = await store.put(Buffer.from('before'));
      await server.stop();
      await expect(store.put(Buffer.from('meanwhile'))).rejects.toMatchObject({ code: 'store_unavailable' });
      await expect(store.get(ref)).rejects.toMatchObject({ code: 'store_unavailable' });
      await expect(S3BlobStore.open(server.url('down'), systemClock)).rejects.toMatchObject({
        code: 'store_unavailable',
      });
      await server.start();
      expect((await store.get(ref)).toString()).toBe('before');
      expect((await store.get((await store.put(Buffer.from('meanwhile'))).ref)).toString()).toBe('meanwhile');
      await store.close();
    });

    it('causes setup_failed without the bucket or with wrong credentials', async () => {
      const missing = server.url('x').replace('s3://floe/', 's3://other/');
      // The server answers this request without a body, so only the HTTP status says what is wrong.
      const message = expect.stringMatching(/cannot open in the bucket other: .*404/);
      await expect(S3BlobStore.open(missing, systemClock)).rejects.toMatchObject({ code: 'setup_failed', message });
      const secret = process.env.AWS_SECRET_ACCESS_KEY ?? '';
      process.env.AWS_SECRET_ACCESS_KEY = 'wrong-but-secret';
      try {
        const failure = await S3BlobStore.open(server.url('x'), systemClock).catch((thrown: unknown) => thrown);
        expect(failure).toMatchObject({ code: 'setup_failed' });
        expect(inspect(failure, { depth: 12 })).not.toContain('wrong-but-secret');
      } finally {
        process.env.AWS_SECRET_ACCESS_KEY = secret;
      }
    });
  });

  it('parses the location from a URL', () => {
    expect(parseS3Location('s3://bucket')).toEqual({
      bucket: 'bucket',
      prefix: '',
      endpoint: null,
      region: null,
      pathStyle: false,
    });
    const query = 'endpoint=http%3A%2F%2Fminio%3A9000&region=eu&path_style=true';
    expect(parseS3Location(`s3://bucket/a/b%20c/?${query}`)).toEqual({
      bucket: 'bucket',
      prefix: 'a/b c/',
      endpoint: 'http://minio:9000',
      region: 'eu',
      pathStyle: true,
    });
  });

  it.each([
    ['http://bucket', 'another scheme'],
    ['s3:///prefix', 'bucket'],
    ['s3://key:secret@bucket', 'never from the URL'],
    ['s3://bucket?endpoint=ftp%3A%2F%2Fx', 'endpoint'],
    ['s3://bucket?path_style=yes', 'path_style'],
    ['s3://bucket?regoin=eu', 'regoin'],
    ['bucket', 'not a URL'],
  ])('refuses the URL %s', (url, reason) => {
    expect(() => parseS3Location(url)).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining(reason) }),
    );
  });
});
