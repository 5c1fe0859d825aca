import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseAs, sleep, systemClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime, RuntimeProvider, StartRequest } from '../../src/api/runtime.ts';
import { createRuntimeProviders, type RuntimeProviderOptions } from '../../src/backends/providers.ts';
import { createSpawner } from '../../src/spawn/client.ts';
import type { Spawner } from '../../src/spawn/spawner.ts';

export const never: AbortSignal = new AbortController().signal;

type SpecInput = Parameters<typeof runtimeSpecSchema.parse>[0] & object;

/** Fixture of the runtime tests: a temporary directory, a spawner, and the runtime providers that use them. */
export class Workbench {
  readonly dir: string;
  readonly stateDir: string;
  readonly spawner: Spawner;
  private readonly providers: Map<RuntimeBackend, RuntimeProvider>;
  private count = 0;

  private constructor(dir: string, spawner: Spawner, extra: Partial<RuntimeProviderOptions>) {
    this.dir = dir;
    this.stateDir = join(dir, 'state');
    this.spawner = spawner;
    this.providers = createRuntimeProviders({ spawner, clock: systemClock, stateDir: this.stateDir, ...extra });
  }

  static async open(extra: Partial<RuntimeProviderOptions> = {}): Promise<Workbench> {
    return new Workbench(await mkdtemp(join(tmpdir(), 'floe-runtimes-')), await createSpawner(), extra);
  }

  provider(backend: RuntimeBackend): RuntimeProvider {
    const provider = this.providers.get(backend);
    if (provider === undefined) throw new Error(`no provider for ${backend}`);
    return provider;
  }

  async start(backend: RuntimeBackend, spec: SpecInput = {}, more: Partial<StartRequest> = {}): Promise<Runtime> {
    const parsed = parseAs(runtimeSpecSchema, spec, 'runtime');
    const name = `s${this.count++}`;
    return this.provider(backend).start({ name, spec: parsed, proxy: null, readOnlyMounts: [], ...more }, never);
  }

  /** Returns the directories of sandboxes that have not been removed. */
  async sessionDirs(): Promise<string[]> {
    const found: string[] = [];
    for (const owner of await readdir(this.stateDir)) {
      const names = await readdir(join(this.stateDir, owner));
      const own = names.filter((name) => name !== '.share' && name !== '.snapshots');
      found.push(...own.map((name) => join(owner, name)));
      if (names.includes('.snapshots')) {
        found.push(...(await readdir(join(this.stateDir, owner, '.snapshots'))).map((name) => join(owner, name)));
      }
    }
    return found;
  }

  async close(): Promise<void> {
    await this.spawner.close();
    await rm(this.dir, { recursive: true, force: true });
  }
}

let probed: Promise<string | null> | undefined;

/**
 * Resolves with the reason why bubblewrap does not work on this machine and the command that solves it, or with `null` when it works. The
 * check runs once per test worker.
 */
export function bubblewrapMissing(): Promise<string | null> {
  probed ??= probeBubblewrap();
  return probed;
}

async function probeBubblewrap(): Promise<string | null> {
  const bench = await Workbench.open();
  try {
    const problem = await bench.provider('bubblewrap').probe();
    return problem === null ? null : `${problem.problem}: ${problem.remedy}`;
  } finally {
    await bench.close();
  }
}

/**
 * Returns the process ids and command lines of the live processes that have the text in their command line. Zombies are left out, since
 * they have no command line.
 */
export async function processesMentioning(text: string): Promise<string[]> {
  const found: string[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const line = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    if (line.includes(text)) found.push(`${name} ${line.replaceAll('\0', ' ')}`);
  }
  return found;
}

/** Resolves when no process has the text in its command line. Rejects when `signal` aborts, which is when the test times out. */
export async function untilNone(text: string, signal: AbortSignal): Promise<void> {
  while ((await processesMentioning(text)).length > 0) await sleep(systemClock, 5, signal);
}

/** Resolves when a process has the text in its command line. Rejects when `signal` aborts, which is when the test times out. */
export async function untilSome(text: string, signal: AbortSignal): Promise<void> {
  while ((await processesMentioning(text)).length === 0) await sleep(systemClock, 5, signal);
}

/** Returns the ids of the processes with a mount that has the text in its path. */
export async function processesThatMount(text: string): Promise<string[]> {
  const found: string[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const mounts = await readFile(`/proc/${name}/mountinfo`, 'utf8').catch(() => '');
    if (mounts.includes(text)) found.push(name);
  }
  return found;
}

/**
 * Returns a random number of seconds for the command `sleep`. The number is unlikely to occur in another command line, so a test can find its
 * own `sleep` process.
 */
export function uniqueSeconds(): string {
  return String(100_000 + Math.floor(Math.random() * 900_000));
}
