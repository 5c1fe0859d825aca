import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { findPython, run, venvAt } from './venv.ts';

const UV = 'uv==0.13.9';
/** Minor version of Python in all environments. Some packages need at least this version, and others at most this version. */
const MINOR = 12;

/** The arguments of `uv pip install`, one list for each call. */
export type Installs = readonly (readonly string[])[];

/** Virtual environments with packages of PyPI, at fixed versions. `uv` links the files that environments share, so that they are stored once. */
export class UvEnvironments {
  /** Path of `uv`, which {@link installUv} installs. */
  readonly uv: string;
  private readonly home: string;

  /** The environments are in the folder that the variable names or, without it, in the folder `name` of the user's cache. */
  constructor(name: string, variable: string) {
    this.home = process.env[variable] ?? join(homedir(), '.cache', 'floe', name);
    this.uv = join(this.home, 'uv', 'bin', 'uv');
  }

  /** Returns the Python program of an environment; `null` when the environment is not installed with these packages. */
  installedPython(name: string, installs: Installs): string | null {
    const { python, stamp } = this.pathsOf(name);
    return existsSync(stamp) && readFileSync(stamp, 'utf8') === contentsOf(installs) ? python : null;
  }

  /** Installs `uv`, unless it is installed. Throws an Error that names the command that failed. */
  installUv(): void {
    if (existsSync(this.uv)) return;
    mkdirSync(this.home, { recursive: true });
    venvAt(join(this.home, 'uv')).pip('install', '-q', UV);
  }

  /** Installs an environment, unless it is installed. Throws an Error that names the command that failed. */
  install(name: string, installs: Installs): void {
    if (this.installedPython(name, installs) !== null) return;
    this.installUv();
    const { folder, python, stamp } = this.pathsOf(name);
    rmSync(folder, { recursive: true, force: true });
    run(this.uv, ['venv', '-q', '-p', findPython(MINOR, MINOR), folder]);
    for (const packages of installs) run(this.uv, ['pip', 'install', '-q', '-p', python, ...packages]);
    writeFileSync(stamp, contentsOf(installs));
  }

  private pathsOf(name: string): { readonly folder: string; readonly python: string; readonly stamp: string } {
    const folder = join(this.home, name);
    return { folder, python: join(folder, 'bin', 'python'), stamp: join(folder, 'installed') };
  }
}

function contentsOf(installs: Installs): string {
  return JSON.stringify([`3.${MINOR}`, ...installs]);
}
