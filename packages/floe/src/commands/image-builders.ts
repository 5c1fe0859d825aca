import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, makeTempDir, runTool } from '@floe-rl/core';
import {
  buildEngineImage,
  buildError,
  ContainerEngine,
  contextReference,
  type ImageBuild,
  type ImageStore,
  importImage,
  type StoredImage,
} from '@floe-rl/sandbox';

/** Unix sockets of the container engines. */
export type EngineSockets = { readonly dockerSocket: string; readonly podmanSocket: string };

/** Programs that build images without a container engine that runs as a service, and without root privileges. */
const BUILD_PROGRAMS = ['podman', 'buildah'];
/** Registry part of the names of built images, which are in no registry. */
const LOCAL = 'localhost';
/** Maximum number of characters of a build's output, taken from its end, that an error quotes. */
const OUTPUT_CHARS = 2_000;

/**
 * Builds the image of a folder with a Dockerfile and adds it to the store, under `localhost/<name>:<hash of the context>`. An image that the
 * store has under this name is not built again. Uses Docker or Podman when one of their services answers, else the program `podman` or
 * `buildah`. Rejects with `setup_failed` when all are missing. Also rejects when the build fails, with the end of its output in the message.
 */
export async function buildIntoStore(
  store: ImageStore,
  build: ImageBuild,
  sockets: EngineSockets,
  signal: AbortSignal,
): Promise<StoredImage> {
  const reference = `${LOCAL}/${await contextReference(build, signal)}`;
  const known = await store.find(reference);
  if (known !== null) return known;
  for (const socketPath of [sockets.dockerSocket, sockets.podmanSocket]) {
    const built = await withEngine(store, reference, build, socketPath, signal);
    if (built !== null) return built;
  }
  for (const program of BUILD_PROGRAMS) {
    if ((await runTool([program, '--version'], { cwd: '/', env: process.env, signal })) === null) {
      return withProgram(store, reference, build, program, signal);
    }
  }
  const remedy =
    'start Docker or Podman, install podman or buildah, or name an image that was built elsewhere with --image';
  throw new FloeError('setup_failed', `${build.context}: nothing on this machine builds images: ${remedy}`, {
    context: build.context,
  });
}

/** Builds with the container engine at `socketPath`. Resolves with `null` when none answers. */
async function withEngine(
  store: ImageStore,
  name: string,
  build: ImageBuild,
  socketPath: string,
  signal: AbortSignal,
): Promise<StoredImage | null> {
  const engine = new ContainerEngine(socketPath);
  try {
    const isThere = await engine.version(signal).then(
      () => true,
      () => false,
    );
    signal.throwIfAborted();
    if (!isThere) return null;
    const reference = await buildEngineImage(engine, build, signal);
    return await importImage(store, name, { kind: 'engine', reference, socketPath }, signal);
  } finally {
    await engine.close();
  }
}

/** Builds with `podman build` or `buildah build`. */
async function withProgram(
  store: ImageStore,
  name: string,
  build: ImageBuild,
  program: string,
  signal: AbortSignal,
): Promise<StoredImage> {
  const { context, dockerfile, limitSeconds, network, onStart } = build;
  onStart?.();
  let output = '';
  const tool = async (args: readonly string[]): Promise<void> => {
    const failure = await runTool([program, ...args], {
      ...{ cwd: '/', env: process.env, timeoutMs: limitSeconds * 1000, signal },
      onOutput: (text) => {
        output = (output + text).slice(-OUTPUT_CHARS);
      },
    });
    if (failure !== null) throw buildError(name, failure.reason, [output]);
  };
  const dir = makeTempDir('floe-build-');
  try {
    const networkArgs = network === undefined ? [] : ['--network', network];
    await tool(['build', ...networkArgs, '--tag', name, '--file', join(context, dockerfile), context]);
    const path = join(dir, 'image.tar');
    await tool(['push', '--quiet', name, `docker-archive:${path}`]);
    return await importImage(store, name, { kind: 'archive', path }, signal);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}
