import { mkdir, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { FloeError, runTool } from '@floe-rl/core';
import type { ImageStore, StoredImage } from './store.ts';

/**
 * Resolves with the directory of the image's root file system, which is unpacked once. Its files have the owners of the image when this
 * process is root, and otherwise all belong to this process's user. Rejects with `setup_failed` when `umoci` is missing or fails.
 */
export function rootFileSystemOf(store: ImageStore, image: StoredImage, signal: AbortSignal): Promise<string> {
  const isRoot = process.getuid?.() === 0;
  // The files of a root file system that another user unpacked have other owners.
  return store.part(image, isRoot ? 'rootfs' : `rootfs-${process.getuid?.()}`, signal, async (path) => {
    const bundle = `${path}.bundle`;
    const argv = ['umoci', 'unpack', ...(isRoot ? [] : ['--rootless']), '--image', `${image.dir}/oci:image`, bundle];
    await runImageTool(argv, `unpack ${image.reference}`, signal);
    await rename(join(bundle, 'rootfs'), path);
  });
}

/**
 * Resolves with the path of the image as a SIF file, which is made once. `apptainer` is the command of Apptainer. Rejects with `setup_failed`
 * when Apptainer is missing or fails.
 */
export async function sifOf(
  store: ImageStore,
  image: StoredImage,
  apptainer: readonly string[],
  signal: AbortSignal,
): Promise<string> {
  const root = await rootFileSystemOf(store, image, signal);
  return store.part(image, 'image.sif', signal, async (path) => {
    await mkdir(dirname(path), { recursive: true });
    await runImageTool([...apptainer, 'build', path, root], `make a SIF file of ${image.reference}`, signal);
  });
}

/** Gives the image to a container engine that listens at `socketPath`, under the name `name`. Rejects with `setup_failed`. */
export async function loadIntoEngine(
  store: ImageStore,
  image: StoredImage,
  { name, socketPath }: { readonly name: string; readonly socketPath: string },
  signal: AbortSignal,
): Promise<void> {
  const blobs = ['--src-shared-blob-dir', join(store.dir, 'blobs')];
  const engine = ['--dest-daemon-host', `unix://${socketPath}`];
  const places = [`oci:${image.dir}/oci:image`, `docker-daemon:${name}`];
  const purpose = `load ${image.reference} into the container engine`;
  await runImageTool(['skopeo', 'copy', '--quiet', ...blobs, ...engine, ...places], purpose, signal);
}

/**
 * Runs a program that works on images. Rejects with `setup_failed`; when the program is missing, the message has the command that installs it.
 */
export async function runImageTool(argv: readonly string[], purpose: string, signal: AbortSignal): Promise<void> {
  const failure = await runTool(argv, { cwd: '/', env: process.env, signal });
  if (failure === null) return;
  const [program = ''] = argv;
  const message = failure.missing
    ? `${program} is not installed, and is needed to ${purpose}: apt-get install --no-install-recommends ${program}`
    : `cannot ${purpose}: ${failure.reason}`;
  throw new FloeError('setup_failed', message, { program }, failure.cause);
}
