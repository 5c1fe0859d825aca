import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import type { MissingPart } from '../../../../test/skip.ts';
import { makeImage } from '../../../../verify/fixtures/image.ts';
import type { PrivateEngine } from '../../../../verify/services/container-engine.ts';
import { dockerMissing, startDockerDaemon } from '../../../../verify/services/docker-daemon.ts';
import { podmanMissing, startPodmanService } from '../../../../verify/services/podman-service.ts';
import { findTool } from '../../../../verify/services/tools.ts';
import { APPTAINER_VARIABLE } from '../../../../verify/services/unprivileged.ts';
import { bubblewrapMissing, Workbench } from './workbench.ts';

/** Name of the image that the functions of this file make. */
export const IMAGE = 'floe-test';

/** A workbench, and the container engine that it uses, if any. */
export type ContainerBench = {
  readonly bench: Workbench;
  /** Socket of the container engine; `null` when the back end uses none. */
  readonly engineSocket: string | null;
  /** Image of the sandboxes; `null` when the back end needs none. */
  readonly image: string | null;
  /** Starts a sandbox. The image is added if the back end needs one. */
  readonly start: Workbench['start'];
  close(): Promise<void>;
};

/** Resolves with the reason why each back end cannot be tested on this machine; `null` where it can. */
export async function missingBackends(): Promise<Readonly<Record<RuntimeBackend, MissingPart>>> {
  return {
    bubblewrap: await bubblewrapMissing(),
    docker: await dockerMissing(),
    podman: podmanMissing(),
    apptainer: apptainerMissing(),
    local: null,
    none: 'the runtime none runs no commands: none.test.ts tests it',
  };
}

/** Returns the path of the program Apptainer; `null` when it is not installed. */
export function apptainerProgram(): string | null {
  return process.env[APPTAINER_VARIABLE] ?? findTool('apptainer');
}

function apptainerMissing(): MissingPart {
  if (process.getuid?.() === 0)
    return 'Apptainer sandboxes need a user without root privileges: unprivileged.long.test.ts tests them';
  return apptainerProgram() === null ? 'apptainer is not installed: npm run verify -- install' : null;
}

/**
 * Opens a workbench for tests of `backend`. Where the back end needs an image, makes an image that contains `programs` of this host. For a
 * container engine, starts the engine.
 */
export async function openWorkbench(backend: RuntimeBackend, programs: readonly string[]): Promise<ContainerBench> {
  const engine = backend === 'docker' || backend === 'podman' ? await startEngineWithImage(backend, programs) : null;
  const socket = engine?.socketPath;
  const command = apptainerProgram() ?? undefined;
  const bench = await Workbench.open({ dockerSocket: socket, podmanSocket: socket, apptainerCommand: command });
  const directory = join(bench.dir, 'image');
  if (backend === 'apptainer') {
    mkdirSync(directory);
    makeImage(directory, programs);
  }
  const image = engine !== null ? IMAGE : backend === 'apptainer' ? directory : null;
  return {
    bench,
    engineSocket: socket ?? null,
    image,
    start: (name, spec, more) => bench.start(name, image === null ? spec : { image, ...spec }, more),
    async close() {
      await bench.close();
      await engine?.stop();
    },
  };
}

/** Starts a container engine with the image {@link IMAGE}, which contains `programs` of this host. */
export async function startEngineWithImage(
  backend: 'docker' | 'podman',
  programs: readonly string[],
): Promise<PrivateEngine> {
  const engine = backend === 'docker' ? await startDockerDaemon() : await startPodmanService();
  const dir = mkdtempSync(join(tmpdir(), 'floe-image-'));
  try {
    makeImage(dir, programs);
    await engine.importImage(IMAGE, dir);
    return engine;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
