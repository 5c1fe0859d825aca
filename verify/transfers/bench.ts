// Sandboxes of one back end for the transfers.
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs } from '@floe-rl/core';
import { type RuntimeBackend, runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { makeImage } from '../fixtures/image.ts';
import { dockerMissing } from '../services/docker-daemon.ts';
import { openRuntime, type RuntimeUnderTest, runtimeProblem } from '../services/runtime-provider.ts';

const IMAGE_NAME = 'floe-transfers';
/** Programs of the image in addition to the programs of every test image. */
const IMAGE_PROGRAMS = [
  ...['find', 'gzip', 'mktemp', 'ln', 'mkfifo', 'mknod', 'truncate', 'chmod', 'git', 'sed', 'date', 'mv', 'pwd'],
];
const never = new AbortController().signal;

export const BENCHES = ['bubblewrap', 'local', 'docker'] as const satisfies readonly RuntimeBackend[];

export class Bench {
  readonly backend: RuntimeBackend;
  private readonly runtime: RuntimeUnderTest;
  private count = 0;

  private constructor(backend: RuntimeBackend, runtime: RuntimeUnderTest) {
    this.backend = backend;
    this.runtime = runtime;
  }

  /** Resolves to the reason when the back end does not work on this machine. */
  static async open(backend: RuntimeBackend, stateDir: string): Promise<Bench | string> {
    await mkdir(stateDir, { recursive: true });
    const why = backend === 'docker' ? await dockerMissing() : await runtimeProblem(backend, stateDir);
    if (why !== null) return why;
    const directory = await mkdtemp(join(tmpdir(), 'floe-transfers-image-'));
    try {
      makeImage(directory, IMAGE_PROGRAMS);
      return new Bench(backend, await openRuntime(backend, stateDir, { name: IMAGE_NAME, directory }));
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }

  /** Starts a sandbox with a repository in its workdir. */
  async start(): Promise<Runtime> {
    const image = this.backend === 'docker' ? { image: IMAGE_NAME } : {};
    const limits = { storage_mb: 256, max_file_mb: 8192, memory_mb: 1024 };
    const spec = parseAs(runtimeSpecSchema, { ...limits, ...image }, 'runtime');
    const request = { name: `transfer-${this.count++}`, spec, proxy: null, readOnlyMounts: [] };
    const runtime = await this.runtime.provider.start(request, never);
    const command =
      'git init -q . && echo x > start && git add -A && git -c user.name=x -c user.email=x@x commit -q -m x';
    const { exitCode, stderr } = await runtime.exec({ command }, never);
    if (exitCode !== 0) throw new Error(`the sandbox of ${this.backend} has no repository: ${stderr}`);
    return runtime;
  }

  close(): Promise<void> {
    return this.runtime.close();
  }
}
