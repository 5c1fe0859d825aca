import { createHash } from 'node:crypto';
import { cp } from 'node:fs/promises';
import { join } from 'node:path';
import { runImageTool } from './forms.ts';
import { linkBlobs } from './layout.ts';
import type { ImageStore, StoredImage } from './store.ts';

/**
 * Which earlier result of a build may be used. `scratch`: none. `versioned`: a result from the same names and versions, without a request to
 * the registry. `lock`: a result from exactly the same content.
 */
export const CACHE_MODES = ['scratch', 'versioned', 'lock'] as const;
export type CacheMode = (typeof CACHE_MODES)[number];

/** Files that a build adds to its base image, as a layer of their own. */
export type ImageLayer = {
  /** Path on the host of a file or directory. Links in it are copied as links. */
  readonly source: string;
  /** Path in the image. */
  readonly target: string;
  /** Name and version of the content, such as `pi 0.73.1`. */
  readonly version: string;
  /** Digest of the content: the same digest means the same files. */
  readonly lock: string;
};

export type BuildRequest = {
  readonly base: string;
  readonly layers: readonly ImageLayer[];
  /** Environment variables to set in the image, in addition to the variables of the base. */
  readonly env: Readonly<Record<string, string>>;
  /** Name of the result; with `null` the name is derived from the content. */
  readonly name: string | null;
  readonly cache: CacheMode;
};

/** Result of a build. `isNew` is false when an earlier result was used. */
export type BuiltImage = { readonly image: StoredImage; readonly isNew: boolean };

/** Registry part of the names of built images, which are in no registry. */
const LOCAL = 'localhost/floe';
const KEY_CHARS = 16;

/**
 * Builds an image: a base image of a registry or of the store, and layers on top. Rejects with the errors of {@link ImageStore.pull}, or with
 * `setup_failed` when `umoci` is missing or fails.
 */
export async function buildImage(store: ImageStore, request: BuildRequest, signal: AbortSignal): Promise<BuiltImage> {
  const { base, layers, cache } = request;
  if (cache === 'versioned') {
    const earlier = await store.find(cacheName('versioned', [base, ...layers.map(({ version }) => version)], request));
    if (earlier !== null) return { image: await named(store, request, earlier), isNew: false };
  }
  const from = base.startsWith(`${LOCAL}/`) ? await store.find(base) : null;
  const baseImage = from ?? (await store.pull(base, signal));
  const locked = cacheName('lock', [baseImage.digest, ...layers.map(({ lock }) => lock)], request);
  if (cache === 'lock') {
    const earlier = await store.find(locked);
    if (earlier !== null) return { image: await named(store, request, earlier), isNew: false };
  }
  const image = await store.build(locked, (dir) => addLayers(dir, baseImage, request, signal));
  await store.alias(cacheName('versioned', [base, ...layers.map(({ version }) => version)], request), image);
  return { image: await named(store, request, image), isNew: true };
}

async function named(store: ImageStore, { name }: BuildRequest, image: StoredImage): Promise<StoredImage> {
  return name === null ? image : store.alias(name, image);
}

async function addLayers(
  dir: string,
  base: StoredImage,
  { layers, env }: BuildRequest,
  signal: AbortSignal,
): Promise<void> {
  const layout = join(dir, 'oci');
  await cp(join(base.dir, 'oci'), layout, { recursive: true, filter: (path) => !path.endsWith('/blobs') });
  await linkBlobs(layout);
  const reference = `${layout}:image`;
  for (const { source, target, version } of layers) {
    const owner = process.getuid?.() === 0 ? [] : ['--rootless'];
    const argv = ['umoci', 'insert', ...owner, '--history.created_by', `floe: ${version}`, '--image', reference];
    await runImageTool([...argv, source, target], `add ${version} to ${base.reference}`, signal);
  }
  const variables = Object.entries(env).flatMap(([name, value]) => ['--config.env', `${name}=${value}`]);
  if (variables.length > 0) {
    await runImageTool(['umoci', 'config', '--image', reference, ...variables], 'set variables of an image', signal);
  }
}

/** Returns the name under which a later build finds the result. `parts` are the names and versions, or the digests, of its content. */
function cacheName(
  mode: Exclude<CacheMode, 'scratch'>,
  parts: readonly string[],
  { layers, env }: BuildRequest,
): string {
  const content = JSON.stringify([parts, layers.map(({ target }) => target), Object.entries(env).sort()]);
  return `${LOCAL}/${mode}:${createHash('sha256').update(content).digest('hex').slice(0, KEY_CHARS)}`;
}
