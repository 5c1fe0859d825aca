import { type Clock, FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { rootFileSystemOf } from './forms.ts';
import { Registry } from './registry.ts';
import { ImageStore, type StoredImage } from './store.ts';

const hostSchema = z
  .string()
  .regex(/^[A-Za-z0-9.[\]:-]+(\/[a-z0-9._/-]+)?$/, 'must be a host, with an optional port and path');

/** Settings of the images of sandboxes. */
export const imageSettingsSchema = z.strictObject({
  dir: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      'directory of the image store, which nodes on several hosts may share; null for a folder in the cache directory',
    ),
  pull: z
    .enum(['missing', 'never'])
    .default('missing')
    .describe('whether a node pulls an image that a task names and that it does not have'),
  max_pulls: z.int().min(1).max(100).default(3).describe('maximum number of images that are pulled at the same time'),
  mirrors: z
    .record(hostSchema, z.array(hostSchema))
    .default({})
    .describe('mirrors that are tried before a registry, by the name of the registry, such as docker.io'),
  insecure_registries: z
    .array(hostSchema)
    .default([])
    .describe('registries and mirrors that are called without TLS, or whose certificates are not checked'),
  auth_file: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe("file with the registries' credentials, in the format of `docker login`"),
});
export type ImageSettings = z.output<typeof imageSettingsSchema>;

/** Settings with the directory of the store. */
export type PlacedImageSettings = ImageSettings & { readonly dir: string };

/** Opens the image store of the settings. */
export function openImageStore(settings: PlacedImageSettings, clock: Clock): ImageStore {
  const registry = new Registry({
    clock,
    mirrors: settings.mirrors,
    insecure: settings.insecure_registries,
    authFile: settings.auth_file,
    maxCalls: settings.max_pulls,
  });
  return new ImageStore({ dir: settings.dir, clock, registry });
}

/** An image as a root file system. */
export type RootFileSystem = {
  /** Directory on the host. */
  readonly path: string;
  /** Environment variables of the image. */
  readonly env: Readonly<Record<string, string>>;
};

/** The images of a node's sandboxes. */
export class NodeImages {
  private readonly store: ImageStore;
  private readonly pull: ImageSettings['pull'];
  /** Maximum number of images that a container engine pulls at the same time; `null` when it may not pull images. */
  readonly enginePulls: number | null;

  constructor(settings: PlacedImageSettings, clock: Clock) {
    this.store = openImageStore(settings, clock);
    this.pull = settings.pull;
    this.enginePulls = settings.pull === 'missing' ? settings.max_pulls : null;
  }

  /**
   * Resolves with the root file system of an image. The image is pulled and unpacked first when that is necessary and allowed. Rejects with
   * these codes, and with the other errors of {@link ImageStore.pull}:
   * - `schema_violation`: the reference is invalid.
   * - `not_found`: the registry does not have the image.
   * - `runtime_failed`: the registry does not answer or limits the rate of calls, or this node does not have the image and may not pull it.
   */
  async rootFileSystem(reference: string, signal: AbortSignal): Promise<RootFileSystem> {
    const image = await this.get(reference, signal);
    return { path: await rootFileSystemOf(this.store, image, signal), env: image.env };
  }

  private async get(reference: string, signal: AbortSignal): Promise<StoredImage> {
    const stored = await this.store.find(reference);
    if (stored !== null) return stored;
    if (this.pull === 'missing') return this.store.pull(reference, signal).catch((error) => refusePull(error));
    const remedy = `floe image pull ${reference}`;
    throw new FloeError('runtime_failed', `runtime.image: this node has no image ${reference}; run \`${remedy}\``, {
      image: reference,
    });
  }
}

/** Throws the error of a pull. Errors that may not occur at the next try become `runtime_failed`, so that the session is retried. */
function refusePull(thrown: unknown): never {
  if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
  throw new FloeError('runtime_failed', thrown.message, { ...thrown.details, reason: thrown.code }, thrown);
}

/** Returns the images of a node; `null` when the settings name no directory for them. */
export function nodeImages(settings: ImageSettings, clock: Clock): NodeImages | null {
  const { dir } = settings;
  return dir === null ? null : new NodeImages({ ...settings, dir }, clock);
}
