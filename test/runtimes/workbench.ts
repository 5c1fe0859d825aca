import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '../../src/core/clock.ts';
import { parseAs } from '../../src/core/parse.ts';
import { createRuntimeProviders, type RuntimeProviderOptions } from '../../src/runtimes/providers.ts';
import type { Runtime, RuntimeProvider, StartRequest } from '../../src/runtimes/runtime.ts';
import { createSpawner } from '../../src/runtimes/spawn/client.ts';
import type { Spawner } from '../../src/runtimes/spawn/spawner.ts';
import { type RuntimeBackend, runtimeSpecSchema } from '../../src/schema/index.ts';

export const never: AbortSignal = new AbortController().signal;

type SpecInput = Parameters<typeof runtimeSpecSchema.parse>[0] & object;

/** A directory of its own, a spawner and the providers over them. */
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

  /** Directories of sessions that are still there. */
  async sessionDirs(): Promise<string[]> {
    const found: string[] = [];
    for (const owner of await readdir(this.stateDir)) {
      const names = await readdir(join(this.stateDir, owner));
      found.push(...names.filter((name) => name !== '.share').map((name) => join(owner, name)));
    }
    return found;
  }

  async close(): Promise<void> {
    await this.spawner.close();
    await rm(this.dir, { recursive: true, force: true });
  }
}

let probed: Promise<string | null> | undefined;

/** Why bubblewrap does not work here, with the command that helps; `null` when it works. Probed once per worker. */
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

/** Command lines of live processes that hold the text; zombies have none. */
export async function processesMentioning(text: string): Promise<string[]> {
  const found: string[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const line = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    if (line.includes(text)) found.push(`${name} ${line.replaceAll('\0', ' ')}`);
  }
  return found;
}

/** Processes in whose mount namespace something is mounted at a path that holds the text. */
export async function processesThatMount(text: string): Promise<string[]> {
  const found: string[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const mounts = await readFile(`/proc/${name}/mountinfo`, 'utf8').catch(() => '');
    if (mounts.includes(text)) found.push(name);
  }
  return found;
}

/** A number that no other process's command line is likely to hold, as the duration of a sleep. */
export function uniqueSeconds(): string {
  return String(100_000 + Math.floor(Math.random() * 900_000));
}
