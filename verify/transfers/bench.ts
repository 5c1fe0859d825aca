// Sandboxes of one back end for the transfers.
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs, systemClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeSpecSchema } from '@floe-rl/core/schema';
import { createRuntimeProviders, createSpawner, type Runtime, type RuntimeProvider } from '@floe-rl/sandbox';
import { makeImage } from '../fixtures/image.ts';
import type { PrivateEngine } from '../services/container-engine.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';

const IMAGE_NAME = 'floe-transfers';
/** Programs of the image in addition to those of every test image. */
const IMAGE_PROGRAMS = [
  ...['find', 'gzip', 'mktemp', 'ln', 'mkfifo', 'mknod', 'truncate', 'chmod', 'git', 'sed', 'date', 'mv', 'pwd'],
];
const never = new AbortController().signal;

export const BENCHES = ['bubblewrap', 'local', 'docker'] as const satisfies readonly RuntimeBackend[];

type Resources = {
  readonly backend: RuntimeBackend;
  readonly provider: RuntimeProvider;
  readonly release: () => Promise<void>;
};

export class Bench {
  readonly backend: RuntimeBackend;
  private readonly resources: Resources;
  private count = 0;

  private constructor(resources: Resources) {
    this.backend = resources.backend;
    this.resources = resources;
  }

  /** Resolves to the reason when the back end does not work on this machine. */
  static async open(backend: RuntimeBackend, stateDir: string): Promise<Bench | string> {
    const engine = backend === 'docker' ? await startEngine() : null;
    if (typeof engine === 'string') return engine;
    await mkdir(stateDir, { recursive: true });
    const spawner = await createSpawner();
    const sockets = engine === null ? {} : { dockerSocket: engine.socketPath };
    const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir, ...sockets }).get(backend);
    const release = async (): Promise<void> => {
      await spawner.close();
      await engine?.stop();
    };
    const problem = provider === undefined ? null : await provider.probe();
    if (provider !== undefined && problem === null) return new Bench({ backend, provider, release });
    await release();
    return `${problem?.problem}: ${problem?.remedy}`;
  }

  /** Starts a sandbox with a repository in its workdir. */
  async start(): Promise<Runtime> {
    const image = this.backend === 'docker' ? { image: IMAGE_NAME } : {};
    const limits = { storage_mb: 256, max_file_mb: 8192, memory_mb: 1024 };
    const spec = parseAs(runtimeSpecSchema, { ...limits, ...image }, 'runtime');
    const request = { name: `transfer-${this.count++}`, spec, proxy: null, readOnlyMounts: [] };
    const runtime = await this.resources.provider.start(request, never);
    const command =
      'git init -q . && echo x > start && git add -A && git -c user.name=x -c user.email=x@x commit -q -m x';
    const { exitCode, stderr } = await runtime.exec({ command }, never);
    if (exitCode !== 0) throw new Error(`the sandbox of ${this.backend} has no repository: ${stderr}`);
    return runtime;
  }

  close(): Promise<void> {
    return this.resources.release();
  }
}

async function startEngine(): Promise<PrivateEngine | string> {
  const why = await dockerMissing();
  if (why !== null) return why;
  const dir = await mkdtemp(join(tmpdir(), 'floe-transfers-image-'));
  const daemon = await startDockerDaemon();
  try {
    makeImage(dir, IMAGE_PROGRAMS);
    await daemon.importImage(IMAGE_NAME, dir);
    return daemon;
  } catch (error) {
    await daemon.stop();
    throw error;
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}
