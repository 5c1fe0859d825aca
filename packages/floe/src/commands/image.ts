import { stat } from 'node:fs/promises';
import { basename, isAbsolute, resolve } from 'node:path';
import { FloeError, MIB, systemClock } from '@floe-rl/core';
import { findHarness, harnessInstallDir } from '@floe-rl/node';
import {
  buildImage,
  CACHE_MODES,
  type CacheMode,
  DOCKER_SOCKET,
  digestOfTree,
  type ImageLayer,
  type ImageStore,
  loadIntoEngine,
  openImageStore,
  rootFileSystemOf,
  type StoredImage,
  sifOf,
} from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { type ConfigFileOptions, readImageSettings, withConfigOption } from './config-file.ts';
import { harnessDir } from './home.ts';
import { interruptible } from './lifetime.ts';
import { listed } from './options.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';

type FormOptions = { rootfs?: boolean; sif?: boolean; docker?: string; dockerSocket: string; apptainer: string };
type PullOptions = ConfigFileOptions & FormOptions & { json?: boolean };
type BuildOptions = PullOptions & {
  base: string;
  harness: string[];
  add: string[];
  env: string[];
  name?: string;
  cache: string;
};

export function registerImage(program: Command): void {
  const image = program.command('image').description('pull, build and list the images of sandboxes on this machine');
  withForms(image.command('pull <references...>').description('pull images from their registries')).action(pull);
  withForms(
    image
      .command('build')
      .description('add harnesses and files to an image')
      .requiredOption('--base <reference>', 'image to which the files are added')
      .option('--harness <names...>', 'installed harnesses to add, each with the Node that it needs', [])
      .option(
        '--add <host-path:path...>',
        'files or directories of this machine to add, with their paths in the image',
        [],
      )
      .option('--env <name=value...>', 'environment variables to set in the image', [])
      .option('--name <reference>', 'name of the new image (default: one made of its content)')
      .option('--cache <mode>', `which earlier result may be used: ${listed(CACHE_MODES)}`, 'lock'),
  ).action(build);
  withConfigOption(image.command('list').description('list the images of the store'))
    .option('--json', 'print JSON')
    .action(list);
  withConfigOption(image.command('remove <references...>').description('remove images from the store')).action(remove);
}

function withForms(command: Command): Command {
  return withConfigOption(command)
    .option('--rootfs', 'also unpack the root file system, for bubblewrap')
    .option('--sif', 'also make a SIF file, for Apptainer')
    .option('--docker <name>', 'also load the image into the Docker daemon, under this name')
    .option('--docker-socket <path>', 'Unix socket of the Docker daemon', DOCKER_SOCKET)
    .option('--apptainer <command>', 'program that runs Apptainer', 'apptainer')
    .option('--json', 'print JSON');
}

async function openStore(options: ConfigFileOptions): Promise<ImageStore> {
  return openImageStore(await readImageSettings(options), systemClock);
}

async function pull(references: readonly string[], options: PullOptions): Promise<void> {
  const store = await openStore(options);
  const done = await interruptible(async (signal) => {
    // The store limits the number of concurrent pulls.
    const images = await Promise.all(references.map((reference) => store.pull(reference, signal)));
    for (const image of images) await print(store, image, options, signal);
    return true;
  });
  if (done === null) printNote('Interrupted. Run the command again to pull the rest.');
}

async function build(options: BuildOptions): Promise<void> {
  const { base, name = null, cache } = options;
  if (!CACHE_MODES.some((mode) => mode === cache)) {
    throw new FloeError('bad_request', `--cache: ${cache} is not one of ${CACHE_MODES.join(', ')}`);
  }
  const layers = [
    ...(await Promise.all(options.harness.map(harnessLayer))).filter((layer) => layer !== null),
    ...(await Promise.all(options.add.map(addedLayer))),
  ];
  const env = Object.fromEntries(options.env.map(variableOf));
  const store = await openStore(options);
  const done = await interruptible(async (signal) => {
    const request = { base, layers, env, name, cache: cache as CacheMode };
    const { image, isNew } = await buildImage(store, request, signal);
    printNote(isNew ? `built ${image.reference}` : `${image.reference} had been built before`);
    await print(store, image, options, signal);
    return true;
  });
  if (done === null) printNote('Interrupted.');
}

async function list(options: ConfigFileOptions & { json?: boolean }): Promise<void> {
  const store = await openStore(options);
  const images = await store.list();
  if (options.json) return printJson(images);
  printLine(
    formatTable(
      ['image', 'digest', 'architecture', 'MB of layers'],
      images.map(({ reference, digest, architecture, layerBytes }) => [
        reference,
        digest.slice(0, DIGEST_CHARS),
        architecture,
        Math.round(layerBytes / MIB),
      ]),
    ),
  );
}

/** Number of characters of a digest that a table shows: `sha256:` and 12 hexadecimal digits. */
const DIGEST_CHARS = 19;

async function remove(references: readonly string[], options: ConfigFileOptions): Promise<void> {
  const store = await openStore(options);
  for (const reference of references) {
    if (!(await store.remove(reference)))
      throw new FloeError('not_found', `there is no image ${reference} in ${store.dir}`);
    printLine(`removed ${reference}`);
  }
}

/** Makes the requested forms of an image and prints where they are. */
async function print(store: ImageStore, image: StoredImage, options: PullOptions, signal: AbortSignal): Promise<void> {
  const { reference, digest } = image;
  const rootfs = options.rootfs === true ? await rootFileSystemOf(store, image, signal) : null;
  const sif = options.sif === true ? await sifOf(store, image, [options.apptainer], signal) : null;
  const docker = options.docker ?? null;
  if (docker !== null) await loadIntoEngine(store, image, { name: docker, socketPath: options.dockerSocket }, signal);
  if (options.json) return printJson({ reference, digest, rootfs, sif, docker });
  const forms = [rootfs, sif, docker === null ? null : `${docker} in Docker`].filter((form) => form !== null);
  printLine([`${reference}@${digest}`, ...forms].join('\n  '));
}

async function harnessLayer(name: string): Promise<ImageLayer | null> {
  const adapter = findHarness(name);
  const dir = await harnessInstallDir(adapter, harnessDir());
  if (dir === null) return null;
  // The directory has the version and the digest of the lock file in its name, and the harness runs only at this path.
  return { source: dir, target: dir, version: `${name} ${adapter.install?.version}`, lock: basename(dir) };
}

async function addedLayer(option: string): Promise<ImageLayer> {
  const at = option.lastIndexOf(':');
  const [source, target] = [resolve(option.slice(0, at)), option.slice(at + 1)];
  if (at < 1 || !isAbsolute(target)) {
    throw new FloeError(
      'bad_request',
      `--add: ${option} must be a path of this machine, ":", and an absolute path in the image`,
    );
  }
  const exists = await stat(source).catch(() => null);
  if (exists === null) throw new FloeError('bad_request', `--add: there is no ${source}`);
  return { source, target, version: `${source} at ${target}`, lock: await digestOfTree(source) };
}

function variableOf(option: string): [string, string] {
  const at = option.indexOf('=');
  if (at < 1) throw new FloeError('bad_request', `--env: ${option} must be name=value`);
  return [option.slice(0, at), option.slice(at + 1)];
}
