import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Clock, systemClock, VirtualClock } from '@floe-rl/core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { registryMissing, startRegistry, type TestRegistry } from '../../../../../verify/services/registry.ts';
import { buildImage, type ImageLayer } from '../../../src/images/build.ts';
import { digestOfTree } from '../../../src/images/digest.ts';
import { rootFileSystemOf } from '../../../src/images/forms.ts';
import { imageSettingsSchema, NodeImages, openImageStore } from '../../../src/images/node-images.ts';
import type { ImageStore } from '../../../src/images/store.ts';

const { signal } = new AbortController();

describeIf(registryMissing(), 'ImageStore', () => {
  let registry: TestRegistry;
  let work: string;
  let root: string;
  let dir: string;
  beforeAll(async () => {
    registry = await startRegistry();
    work = mkdtempSync(join(tmpdir(), 'floe-images-'));
    root = join(work, 'root');
    mkdirSync(join(root, 'etc'), { recursive: true });
    writeFileSync(join(root, 'etc/name'), 'one');
    symlinkSync('name', join(root, 'etc/link'));
    registry.push('team/one:1', root, { env: { COLOR: 'blue' } });
  });
  afterAll(async () => {
    await registry.stop();
    rmSync(work, { recursive: true, force: true });
  });
  beforeEach(() => {
    dir = mkdtempSync(join(work, 'store-'));
    registry.requests.length = 0;
  });
  afterEach(() => registry.failNext(200, 0));

  const settings = (more: object = {}) => ({
    ...imageSettingsSchema.parse({ insecure_registries: [registry.host], ...more }),
    dir,
  });
  const open = (more: object = {}, clock: Clock = systemClock): ImageStore => openImageStore(settings(more), clock);
  const name = (image: string) => `${registry.host}/${image}`;

  describe('pull', () => {
    it('stores an image with its configuration, and finds it again without the registry', async () => {
      const image = await open().pull(name('team/one:1'), signal);
      expect(image).toMatchObject({ reference: name('team/one:1'), env: { COLOR: 'blue' } });
      expect(image.digest).toMatch(/^sha256:[0-9a-f]{64}$/);
      registry.requests.length = 0;
      expect(await open().find(name('team/one:1'))).toEqual(image);
      expect(await open().find(name('team/one:2'))).toBeNull();
      expect(registry.requests).toEqual([]);
      expect(await open().list()).toEqual([image]);
    });

    it('copies an image that the store has only when the registry has another one now', async () => {
      registry.push('team/moving:1', root);
      const first = await open().pull(name('team/moving:1'), signal);
      registry.requests.length = 0;
      expect(await open().pull(name('team/moving:1'), signal)).toEqual(first);
      expect(registry.requests.filter((path) => path.includes('/blobs/'))).toEqual([]);
      registry.push('team/moving:1', join(root, 'etc'));
      const second = await open().pull(name('team/moving:1'), signal);
      expect(second.digest).not.toBe(first.digest);
      expect((await open().find(name('team/moving:1')))?.digest).toBe(second.digest);
    });

    it('copies each image once when several stores in one directory ask for it at the same time', async () => {
      const pulled = await Promise.all([1, 2, 3, 4].map(() => open().pull(name('team/one:1'), signal)));
      expect(new Set(pulled.map((image) => image.dir)).size).toBe(1);
      const layers = registry.requests.filter((path) => path.includes('/blobs/'));
      expect(layers.length).toBe(new Set(layers).size);
      expect(readdirSync(join(dir, 'images')).filter((entry) => entry.startsWith('.'))).toEqual([]);
    });

    it('waits and tries again when the registry limits the rate of requests', async () => {
      registry.failNext(429, 2);
      await open().pull(name('team/one:1'), signal);
      expect(registry.requests.filter((path) => path.includes('/manifests/')).length).toBeGreaterThan(2);
    });

    it.each([
      [429, 'overloaded'],
      [401, 'forbidden'],
      [404, 'not_found'],
    ])('rejects when the registry answers %i with %s', async (status, code) => {
      registry.failNext(status, 1000);
      const pulled = open().pull(name('team/one:1'), signal);
      await expect(pulled).rejects.toMatchObject({ code, message: expect.stringContaining(name('team/one:1')) });
      expect(await open().list()).toEqual([]);
    });

    it('rejects after three more tries for a registry that does not answer, and at once for an invalid reference', async () => {
      const clock = new PauseClock();
      const nowhere = open({}, clock).pull('127.0.0.1:1/x:1', signal);
      await expect(nowhere).rejects.toMatchObject({ code: 'peer_unreachable' });
      expect(clock.pauses).toBe(3);
      await expect(open().pull('No Image', signal)).rejects.toMatchObject({ code: 'schema_violation' });
    });

    it('asks mirrors first, and the registry when they do not have the image', async () => {
      const mirrored = open({ mirrors: { 'registry.invalid': [`${registry.host}/team`] } });
      expect((await mirrored.pull('registry.invalid/one:1', signal)).reference).toBe('registry.invalid/one:1');
      const absent = open({ mirrors: { [registry.host]: [`${registry.host}/absent`] } });
      registry.requests.length = 0;
      await absent.pull(name('team/one:1'), signal);
      expect(registry.requests.some((path) => path.startsWith('/v2/absent/team/one/'))).toBe(true);
    });
  });

  describe('an image', () => {
    it('is unpacked once, with its links and permissions', async () => {
      const store = open();
      const image = await store.pull(name('team/one:1'), signal);
      const paths = await Promise.all([1, 2, 3].map(() => rootFileSystemOf(open(), image, signal)));
      expect(new Set(paths).size).toBe(1);
      expect(readFileSync(join(paths[0] as string, 'etc/link'), 'utf8')).toBe('one');
      const before = statSync(paths[0] as string).ino;
      expect(statSync(await rootFileSystemOf(store, image, signal)).ino).toBe(before);
    });

    it('is removed with the blobs that no other image uses, once they are a day old', async () => {
      const store = open();
      const image = await store.pull(name('team/one:1'), signal);
      await store.alias('localhost/other:1', image);
      expect(await store.remove(name('team/one:1'))).toBe(true);
      expect(existsSync(image.dir)).toBe(true);
      expect(await store.remove('localhost/other:1')).toBe(true);
      expect(existsSync(image.dir)).toBe(false);
      expect(await store.remove('localhost/other:1')).toBe(false);
      expect(await store.list()).toEqual([]);
    });

    it('is copied again when one of its layers is damaged', async () => {
      const store = open();
      const image = await store.pull(name('team/one:1'), signal);
      const blobs = join(dir, 'blobs/sha256');
      const largest = readdirSync(blobs).sort(
        (a, b) => statSync(join(blobs, b)).size - statSync(join(blobs, a)).size,
      )[0];
      truncateSync(join(blobs, largest as string), 3);
      rmSync(image.dir, { recursive: true });
      await expect(store.pull(name('team/one:1'), signal)).resolves.toMatchObject({ digest: image.digest });
      expect(await rootFileSystemOf(store, image, signal)).toContain(image.dir);
    });
  });

  describe('buildImage', () => {
    const layer = async (path: string): Promise<ImageLayer> => ({
      source: path,
      target: '/opt/tool',
      version: 'tool 1',
      lock: await digestOfTree(path),
    });
    const tool = (text: string): string => {
      const path = mkdtempSync(join(work, 'tool-'));
      writeFileSync(join(path, 'run'), text, { mode: 0o755 });
      return path;
    };

    it('adds files and variables to a base image', async () => {
      const store = open();
      const layers = [await layer(tool('first'))];
      const request = {
        base: name('team/one:1'),
        layers,
        env: { SIZE: '2' },
        name: 'localhost/mine:1',
        cache: 'lock',
      } as const;
      const { image, isNew } = await buildImage(store, request, signal);
      expect([isNew, image.env]).toEqual([true, { COLOR: 'blue', SIZE: '2' }]);
      const path = await rootFileSystemOf(store, image, signal);
      expect(readFileSync(join(path, 'opt/tool/run'), 'utf8')).toBe('first');
      expect(statSync(join(path, 'opt/tool/run')).mode & 0o777).toBe(0o755);
      expect(readFileSync(join(path, 'etc/name'), 'utf8')).toBe('one');
      expect((await store.find('localhost/mine:1'))?.digest).toBe(image.digest);
    });

    it.each([
      ['scratch', true, true],
      ['versioned', false, false],
      ['lock', false, true],
    ] as const)(
      'with the cache mode %s, builds again for the same content: %s, for changed files of the same version: %s',
      async (cache, again, changed) => {
        const store = open();
        const request = async (path: string) => ({
          base: name('team/one:1'),
          layers: [await layer(path)],
          env: {},
          name: null,
          cache,
        });
        const path = tool('first');
        expect((await buildImage(store, await request(path), signal)).isNew).toBe(true);
        expect((await buildImage(store, await request(path), signal)).isNew).toBe(again);
        expect((await buildImage(store, await request(tool('second')), signal)).isNew).toBe(changed);
      },
    );

    it('asks the registry for nothing when the cache mode is versioned and an image of these versions exists', async () => {
      const store = open();
      const request = {
        base: name('team/one:1'),
        layers: [await layer(tool('x'))],
        env: {},
        name: null,
        cache: 'versioned',
      } as const;
      await buildImage(store, request, signal);
      registry.requests.length = 0;
      await buildImage(store, request, signal);
      expect(registry.requests).toEqual([]);
    });
  });

  describe('NodeImages', () => {
    it('pulls and unpacks an image that the node does not have', async () => {
      const { path, env } = await new NodeImages(settings(), systemClock).rootFileSystem(name('team/one:1'), signal);
      expect([readFileSync(join(path, 'etc/name'), 'utf8'), env]).toEqual(['one', { COLOR: 'blue' }]);
    });

    it('rejects with runtime_failed when the registry limits the rate of calls, so that the session is retried', async () => {
      registry.failNext(429, 1000);
      const images = new NodeImages(settings(), systemClock);
      await expect(images.rootFileSystem(name('team/one:1'), signal)).rejects.toMatchObject({
        code: 'runtime_failed',
        details: { reason: 'overloaded' },
      });
    });

    it('rejects with the command that pulls the image when the node may not pull', async () => {
      const images = new NodeImages(settings({ pull: 'never' }), systemClock);
      await expect(images.rootFileSystem(name('team/one:1'), signal)).rejects.toMatchObject({
        code: 'runtime_failed',
        message: expect.stringContaining(`floe image pull ${name('team/one:1')}`),
      });
    });
  });
});

/** A clock on which pauses of at least half a second take no time. It counts them. */
class PauseClock extends VirtualClock {
  pauses = 0;

  override schedule(delayMs: number, callback: () => void): () => void {
    const cancel = super.schedule(delayMs, callback);
    if (delayMs >= 500 && delayMs < 5000) {
      this.pauses++;
      setImmediate(() => this.advance(delayMs));
    }
    return cancel;
  }
}
