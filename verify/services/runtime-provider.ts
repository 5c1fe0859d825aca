import { systemClock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { createRuntimeProviders, createSpawner, type RuntimeProvider } from '@floe-rl/sandbox';
import type { PrivateEngine } from './container-engine.ts';
import { startDockerDaemon } from './docker-daemon.ts';
import { startPodmanService } from './podman-service.ts';
import { findTool } from './tools.ts';
import { APPTAINER_VARIABLE } from './unprivileged.ts';

/** A runtime of this machine that a verification measures or attacks. */
export type RuntimeUnderTest = {
  readonly provider: RuntimeProvider;
  /** The container engine that was started for the runtime; `null` for a runtime without a container engine. */
  readonly engine: PrivateEngine | null;
  /** Value of `runtime.image` for the image: its name in the container engine, or its directory. */
  readonly image: string;
  readonly close: () => Promise<void>;
};

/**
 * Starts what the runtime `backend` needs. `directory` is the root file system of an image. A container engine imports it under the name
 * `name`.
 */
export async function openRuntime(
  backend: RuntimeBackend,
  stateDir: string,
  { name, directory }: { readonly name: string; readonly directory: string },
): Promise<RuntimeUnderTest> {
  const engine = await startEngine(backend);
  const spawner = await createSpawner();
  const close = async (): Promise<void> => {
    await spawner.close();
    await engine?.stop();
  };
  try {
    await engine?.importImage(name, directory);
    const provider = createRuntimeProviders({
      ...{ spawner, clock: systemClock, stateDir },
      dockerSocket: engine?.socketPath,
      podmanSocket: engine?.socketPath,
      apptainerCommand: process.env[APPTAINER_VARIABLE] ?? findTool('apptainer') ?? undefined,
    }).get(backend);
    if (provider === undefined) throw new Error(`there is no runtime ${backend}`);
    return { provider, engine, image: engine === null ? directory : name, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Resolves to the reason why a runtime that needs no container engine does not work for this user; `null` when it does. */
export async function runtimeProblem(backend: RuntimeBackend, stateDir: string): Promise<string | null> {
  const { provider, close } = await openRuntime(backend, stateDir, { name: '', directory: '' });
  try {
    const problem = await provider.probe();
    return problem === null ? null : `${problem.problem}: ${problem.remedy}`;
  } finally {
    await close();
  }
}

async function startEngine(backend: RuntimeBackend): Promise<PrivateEngine | null> {
  if (backend === 'docker') return startDockerDaemon();
  return backend === 'podman' ? startPodmanService() : null;
}
