import { randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { basename, join } from 'node:path';
import { type Clock, ensureWritableDir, FloeError, parseAs, parseJson, removeTree } from '@floe-rl/core';
import { z } from 'zod';
import { blobsOf, type ImageFacts, linkBlobs, readLayout } from './layout.ts';
import { formatReference, parseReference } from './reference.ts';
import type { Registry } from './registry.ts';
import { withSharedLock } from './shared-lock.ts';

/** Name prefix of directories in which images are being made. */
const UNFINISHED = '.making-';
/** Age in milliseconds after which an unfinished directory, or a blob that no image uses, is left over from a process that has ended. */
const LEFT_OVER_MS = 24 * 3_600_000;

const recordSchema = z.strictObject({
  digest: z.string(),
  architecture: z.string(),
  env: z.record(z.string(), z.string()),
  workdir: z.string().nullable(),
  user: z.string().nullable(),
  layerBytes: z.number(),
});

/** An image in the store. */
export type StoredImage = ImageFacts & {
  /** Name of the image in the request: a reference, or the name that it was built under. */
  readonly reference: string;
  /** Directory with the image's files in the store. */
  readonly dir: string;
};

export type ImageStoreOptions = {
  /** Directory of the store. Nodes on several hosts may use one directory on a shared file system at the same time. */
  readonly dir: string;
  readonly clock: Clock;
  readonly registry: Registry;
};

/**
 * A store of images of sandboxes as OCI layouts, which share their blobs. `images/<digest>-<architecture>` has the layout and everything that
 * was made from it. `references/` has a file for each name. Files and directories appear at their paths only when they are complete.
 */
export class ImageStore {
  readonly dir: string;
  private readonly clock: Clock;
  private readonly registry: Registry;

  constructor({ dir, clock, registry }: ImageStoreOptions) {
    this.dir = dir;
    this.clock = clock;
    this.registry = registry;
  }

  /** Resolves with the image of this name; `null` when the store has none. Rejects with `schema_violation` for an invalid name. */
  async find(name: string): Promise<StoredImage | null> {
    const reference = formatReference(parseReference(name));
    const key = await readFile(this.referencePath(reference), 'utf8').catch(() => null);
    return key === null ? null : this.read(reference, key.trim());
  }

  /**
   * Pulls an image from its registry, unless the store already has the registry's current image. Rejects with `schema_violation` for an
   * invalid name, with the errors of {@link Registry.digestOf}, or with `setup_failed` when the store cannot be written to.
   */
  async pull(name: string, signal: AbortSignal): Promise<StoredImage> {
    const image = parseReference(name);
    const reference = formatReference(image);
    this.prepare();
    const digest = image.digest ?? (await this.registry.digestOf(image, signal));
    const key = keyOf(digest);
    return this.locked(key, signal, async () => {
      const known = await this.read(reference, key);
      if (known !== null) {
        await this.name(reference, key);
        return known;
      }
      return this.add(reference, key, async (dir) => {
        const layoutDir = join(dir, 'oci');
        const pinned = { ...image, digest };
        await this.registry.copyToLayout(pinned, { layoutDir, blobsDir: join(this.dir, 'blobs') }, signal);
        await linkBlobs(layoutDir);
      });
    });
  }

  /**
   * Adds an image that `make` creates as an OCI layout in the directory `oci` of the given directory, and names it `name`. Its blobs are
   * reached through the link that {@link linkBlobs} makes.
   */
  async build(name: string, make: (dir: string) => Promise<void>): Promise<StoredImage> {
    const reference = formatReference(parseReference(name));
    this.prepare();
    return this.add(reference, null, make);
  }

  /** Gives an image another name. If an earlier image has this name, it loses the name. */
  async alias(name: string, image: StoredImage): Promise<StoredImage> {
    const reference = formatReference(parseReference(name));
    await this.name(reference, basename(image.dir));
    return { ...image, reference };
  }

  /**
   * Resolves with the path of a part of an image, such as its root file system, which `make` creates at the given path when the store does
   * not have it. Several processes that ask at the same time make it once.
   */
  async part(
    image: StoredImage,
    part: string,
    signal: AbortSignal,
    make: (path: string) => Promise<void>,
  ): Promise<string> {
    const path = join(image.dir, part);
    if (await exists(path)) return path;
    return this.locked(`${basename(image.dir)}-${part}`, signal, async () => {
      if (await exists(path)) return path;
      const dir = await this.unfinished();
      try {
        await make(join(dir, part));
        await moveTo(join(dir, part), path);
        return path;
      } finally {
        await removeTree(dir);
      }
    });
  }

  /** Resolves with all images, one for each name, in the order of their names. */
  async list(): Promise<StoredImage[]> {
    const files = await readdir(join(this.dir, 'references')).catch(() => []);
    const images = await Promise.all(
      files.map((file) => decodeURIComponent(file)).map((reference) => this.find(reference).catch(() => null)),
    );
    return images.filter((image) => image !== null).sort((a, b) => (a.reference < b.reference ? -1 : 1));
  }

  /**
   * Removes a name. Also removes the image when no other name refers to it, and the blobs that no image uses. No sandbox may use the image.
   * Resolves with false when there is no such name.
   */
  async remove(name: string): Promise<boolean> {
    const image = await this.find(name);
    if (image === null) return false;
    await rm(this.referencePath(image.reference), { force: true });
    const others = await this.list();
    if (!others.some(({ dir }) => dir === image.dir)) await removeTree(image.dir);
    await this.removeLeftovers();
    return true;
  }

  private prepare(): void {
    for (const name of ['blobs', 'images', 'references']) {
      ensureWritableDir(join(this.dir, name), 'set another directory for images with --image-dir');
    }
  }

  private async add(reference: string, key: string | null, make: (dir: string) => Promise<void>): Promise<StoredImage> {
    const dir = await this.unfinished();
    try {
      await make(dir);
      const facts = await readLayout(join(dir, 'oci'));
      const target = key ?? keyOf(facts.digest);
      await writeFile(join(dir, 'image.json'), JSON.stringify(facts));
      await moveTo(dir, join(this.dir, 'images', target));
      await this.name(reference, target);
      const added = await this.read(reference, target);
      if (added === null)
        throw new FloeError('corrupt_record', `the image ${reference} was removed while it was added`);
      return added;
    } finally {
      await removeTree(dir);
    }
  }

  private async read(reference: string, key: string): Promise<StoredImage | null> {
    const dir = join(this.dir, 'images', key);
    const text = await readFile(join(dir, 'image.json')).catch(() => null);
    if (text === null) return null;
    return { ...parseAs(recordSchema, parseJson(text), join(dir, 'image.json')), reference, dir };
  }

  /** Makes `reference` a name of the image `key`. */
  private async name(reference: string, key: string): Promise<void> {
    const path = this.referencePath(reference);
    const unfinished = `${path}.${randomUUID()}`;
    await writeFile(unfinished, `${key}\n`);
    await rename(unfinished, path);
  }

  private referencePath(reference: string): string {
    return join(this.dir, 'references', encodeURIComponent(reference));
  }

  private async unfinished(): Promise<string> {
    const dir = join(this.dir, 'images', `${UNFINISHED}${hostname()}-${process.pid}-${randomUUID()}`);
    await mkdir(dir, { recursive: true });
    return dir;
  }

  private locked<T>(name: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    return withSharedLock(join(this.dir, 'images', `.lock-${name}`), { clock: this.clock, signal }, work);
  }

  private async removeLeftovers(): Promise<void> {
    const images = join(this.dir, 'images');
    const entries = await readdir(images);
    const used = new Set<string>();
    for (const entry of entries.filter((name) => !name.startsWith('.'))) {
      const blobs = await blobsOf(join(images, entry, 'oci')).catch(() => null);
      // Without a list of the blobs of every image, none can be removed.
      if (blobs === null) return;
      for (const blob of blobs) used.add(basename(blob));
    }
    const unfinished = entries.filter((name) => name.startsWith(UNFINISHED)).map((name) => join(images, name));
    const blobsDir = join(this.dir, 'blobs', 'sha256');
    const blobs = await readdir(blobsDir).catch(() => []);
    const unused = blobs.filter((blob) => !used.has(blob)).map((blob) => join(blobsDir, blob));
    for (const path of [...unfinished, ...unused]) if (await this.isLeftOver(path)) await removeTree(path);
  }

  private async isLeftOver(path: string): Promise<boolean> {
    const info = await stat(path).catch(() => null);
    return info !== null && this.clock.nowMs() - info.mtimeMs > LEFT_OVER_MS;
  }
}

/**
 * Returns the name of an image's directory. It contains the architecture, because an image list has one digest for the images of all
 * architectures.
 */
function keyOf(digest: string): string {
  return `${digest.replace(':', '-')}-${process.arch}`;
}

/** Moves a complete directory or file to `target`, unless another process has made `target` meanwhile. */
async function moveTo(path: string, target: string): Promise<void> {
  try {
    await rename(path, target);
  } catch (error) {
    if (!(await exists(target))) throw error;
  }
}

function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
