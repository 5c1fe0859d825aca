import { join } from 'node:path';
import { runImageTool } from './forms.ts';
import { linkBlobs } from './layout.ts';
import type { ImageStore, StoredImage } from './store.ts';

/** An image outside of the store: an image of a container engine, or an archive from `docker save`. */
export type ImageOrigin =
  | { readonly kind: 'engine'; readonly reference: string; readonly socketPath: string }
  | { readonly kind: 'archive'; readonly path: string };

/** Copies an image into the store, under the name `name`. Rejects with `setup_failed` when `skopeo` is missing or fails. */
export function importImage(
  store: ImageStore,
  name: string,
  origin: ImageOrigin,
  signal: AbortSignal,
): Promise<StoredImage> {
  return store.build(name, async (dir) => {
    const layout = join(dir, 'oci');
    const blobs = ['--dest-shared-blob-dir', join(store.dir, 'blobs')];
    // The layers stay on this machine and are unpacked only once, so fast compression is better than small files.
    const compression = ['--dest-compress-format', 'gzip', '--dest-compress-level', '1'];
    const places = [...originArgs(origin), `oci:${layout}:image`];
    await runImageTool(
      ['skopeo', 'copy', '--quiet', ...blobs, ...compression, ...places],
      `copy ${name} into the image store`,
      signal,
    );
    await linkBlobs(layout);
  });
}

function originArgs(origin: ImageOrigin): string[] {
  if (origin.kind === 'archive') return [`docker-archive:${origin.path}`];
  return ['--src-daemon-host', `unix://${origin.socketPath}`, `docker-daemon:${origin.reference}`];
}
