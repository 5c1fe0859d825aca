import { isAbsolute } from 'node:path';
import { asFloeError, FloeError, raceAbort, systemClock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import type { HarborTask, ImageSource } from '@floe-rl/data';
import {
  buildEngineImage,
  ContainerEngine,
  type ImageBuild,
  type ImageInfo,
  ImagePulls,
  type ImageStore,
  imageName,
  openImageStore,
  type PlacedImageSettings,
  type StoredImage,
} from '@floe-rl/sandbox';
import { buildIntoStore, type EngineSockets } from './image-builders.ts';

/** The image of a task, and the working directory that it names; `null` when it names none. */
export type TaskImage = { readonly reference: string; readonly workdir: string | null };

/** An image that a task needs. */
export type ImageRequest = Pick<HarborTask, 'name' | 'file' | 'buildSeconds'> & {
  readonly image: ImageSource;
  /** Key in `file` of a reference to the image. */
  readonly key: string;
};

/** Returns an image of a task. Builds it where the task has a Dockerfile. */
export type TaskImages = {
  imageOf(request: ImageRequest, signal: AbortSignal): Promise<TaskImage>;
  close(): Promise<void>;
};

export type ImageOptions = {
  readonly backend: RuntimeBackend;
  readonly sockets: EngineSockets;
  /** Settings of the image store, which the runtimes without a container engine use. */
  readonly settings: PlacedImageSettings;
  /** An image that replaces the image of every task, so that none is built; `undefined` when each task has its own. */
  readonly image: string | undefined;
  /** Network of the commands of a Dockerfile; `undefined` for the container engine's default. */
  readonly buildNetwork: string | undefined;
  readonly log: (text: string) => void;
};

/** The runtimes with images, in which Harbor tasks run. */
export const IMAGE_BACKENDS = [
  'docker',
  'podman',
  'apptainer',
  'bubblewrap',
] as const satisfies readonly RuntimeBackend[];

/**
 * Returns the source of the images of tasks for a runtime: the container engine itself, or the image store for bubblewrap and Apptainer.
 * Throws `bad_request` for a runtime without images.
 */
export function taskImages(options: ImageOptions): TaskImages {
  const { backend, sockets } = options;
  switch (backend) {
    case 'docker':
      return engineImages(new ContainerEngine(sockets.dockerSocket), options);
    case 'podman':
      return engineImages(new ContainerEngine(sockets.podmanSocket), options);
    case 'bubblewrap':
    case 'apptainer':
      return storeImages(openImageStore(options.settings, systemClock), options);
    default:
      throw new FloeError('bad_request', `--backend ${backend}: a Harbor task needs a sandbox with an image`);
  }
}

/** Returns the name of the task's image, or a description of how it is built. */
function sourceOf(task: ImageRequest, { image, log, buildNetwork }: ImageOptions): string | ImageBuild {
  if (image !== undefined) return image;
  if (task.image.kind === 'reference') return task.image.reference;
  const { context, dockerfile } = task.image;
  const onStart = (): void => log(`▸ ${task.name}: building the image from ${context}`);
  const name = imageName('floe-harbor', task.name);
  return { context, dockerfile, name, limitSeconds: task.buildSeconds, network: buildNetwork, onStart };
}

function engineImages(engine: ContainerEngine, options: ImageOptions): TaskImages {
  const { backend, settings } = options;
  const pulls = settings.pull === 'missing' ? new ImagePulls(engine, systemClock, settings.max_pulls) : null;
  const pull = async (reference: string, signal: AbortSignal): Promise<ImageInfo | null> => {
    if (pulls === null) return null;
    await raceAbort(pulls.pull(reference), signal);
    return engine.image(reference, signal);
  };
  return {
    async imageOf(task, signal) {
      const source = sourceOf(task, options);
      const reference = typeof source === 'string' ? source : await buildEngineImage(engine, source, signal);
      const info =
        (await engine.image(reference, signal)) ??
        (await pull(reference, signal).catch((thrown) => {
          signal.throwIfAborted();
          throw noImage(task, reference, thrown);
        }));
      if (info === null) throw noImage(task, `${reference}; run "${backend} pull ${reference}"`);
      return { reference, workdir: info.workdir === '' ? null : info.workdir };
    },
    close: () => engine.close(),
  };
}

function storeImages(store: ImageStore, options: ImageOptions): TaskImages {
  const { backend, settings, sockets } = options;
  return {
    async imageOf(task, signal) {
      const source = sourceOf(task, options);
      if (typeof source === 'string' && isAbsolute(source)) return { reference: source, workdir: null };
      const image =
        typeof source === 'string'
          ? ((await store.find(source)) ?? (await pullIntoStore(task, source, signal)))
          : await buildIntoStore(store, source, sockets, signal);
      return { reference: image.reference, workdir: image.workdir };
    },
    close: async () => {},
  };

  async function pullIntoStore(task: ImageRequest, reference: string, signal: AbortSignal): Promise<StoredImage> {
    if (settings.pull === 'never')
      throw noImage(task, `${reference} for ${backend}; run "floe image pull ${reference}"`);
    return store.pull(reference, signal).catch((thrown) => {
      signal.throwIfAborted();
      throw noImage(task, reference, thrown);
    });
  }
}

/** Returns the error for a task whose image is missing. `thrown` is the error of the attempt to pull it. */
function noImage({ file, image, key: ofReference }: ImageRequest, what: string, thrown?: unknown): FloeError {
  const key = image.kind === 'reference' ? ofReference : '--image';
  const why = thrown === undefined ? '' : `: ${asFloeError(thrown).message}`;
  return new FloeError('setup_failed', `${file}: ${key}: there is no image ${what}${why}`, { file, key }, thrown);
}
