import { FloeError } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import type { NodeImages } from '../images/node-images.ts';

/** The root file system of an image on this machine, and the environment variables of the image. */
export type HostImage = { readonly path: string; readonly env: Readonly<Record<string, string>> };

/** Returns the image that a task names. Throws `schema_violation` when it names none. */
export function requireImage(backend: RuntimeBackend, image: string | null): string {
  if (image !== null) return image;
  throw new FloeError('schema_violation', `runtime.image: the ${backend} back end needs an image`, {
    path: 'runtime.image',
  });
}

/**
 * Finds an image on this machine: an absolute path, which need not exist, or an image of a registry. Throws `unsupported` for an image of a
 * registry when `images` is `null`.
 */
export async function hostImage(images: NodeImages | null, image: string, signal: AbortSignal): Promise<HostImage> {
  if (image.startsWith('/')) return { path: image, env: {} };
  if (images !== null) return images.rootFileSystem(image, signal);
  throw new FloeError(
    'unsupported',
    `runtime.image: ${image} is not an absolute path, and this node has no image store`,
  );
}
