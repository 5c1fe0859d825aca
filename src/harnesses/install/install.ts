import { mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import type { HarnessAdapter, HarnessInstall } from '../harness.ts';
import { findHarness } from '../registry.ts';
import { harnessInstalls, pythonPath } from './catalog.ts';
import { copyLock, installationName, lockFolder } from './lock-folder.ts';
import { installWithNpm, linkNode } from './npm.ts';
import { makeReadable } from './permissions.ts';
import { installWithPip } from './pip.ts';
import { fillCompileCache, proveStarts } from './warm-up.ts';

export type InstallOptions = {
  /** Installations go to `<cacheDir>/<harness>/<version>-<digest of the lock file>/`. */
  readonly cacheDir: string;
  readonly log: (line: string) => void;
};

export type HarnessStatus = {
  readonly installed: boolean;
  /** Where it is installed; null when it is not, or when there is nothing to install. */
  readonly path: string | null;
};

/** A harness, what is to be installed of it, and the folder with its lock. */
export type LockedHarness = {
  readonly name: string;
  readonly install: HarnessInstall;
  readonly lockDir: string;
};

const TEMP_PREFIX = '.installing-';

/**
 * Installs a harness from its lock file: nothing of it is resolved anew, no package runs a script. Returns its
 * directory; null when there is nothing to install. Safe to repeat, and safe when two processes do it at once.
 * Rejects with `unknown_harness`, or `setup_failed` when a tool is missing or fails, or the program does not start.
 */
export async function installHarness(name: string, options: InstallOptions): Promise<string | null> {
  const locked = lockedHarness(name);
  return locked === null ? null : installLocked(locked, options);
}

/** `installHarness` for any lock. */
export async function installLocked(locked: LockedHarness, { cacheDir, log }: InstallOptions): Promise<string> {
  const { name, install } = locked;
  const target = await installPath(locked, cacheDir);
  if (!(await isComplete(install, target))) {
    log(`installing ${name} ${install.version} into ${target}`);
    await putInPlace(locked, target);
    log(`installed ${name} ${install.version}`);
  }
  await fillCompileCache(name, install, target);
  return target;
}

/** Rejects with `unknown_harness`. */
export async function harnessStatus(name: string, cacheDir: string): Promise<HarnessStatus> {
  const locked = lockedHarness(name);
  if (locked === null) return { installed: true, path: null };
  const path = await installPath(locked, cacheDir);
  const installed = await isComplete(locked.install, path);
  return { installed, path: installed ? path : null };
}

/** The directory of an installed harness; null when it needs none. Rejects with `harness_missing`. */
export async function harnessInstallDir(adapter: HarnessAdapter, cacheDir: string): Promise<string | null> {
  const { installed, path } = await harnessStatus(adapter.name, cacheDir);
  if (installed) return path;
  const command = `floe harness install ${adapter.name}`;
  throw new FloeError('harness_missing', `${adapter.name} is not installed on this node; run \`${command}\``, {
    harness: adapter.name,
    version: adapter.install?.version ?? null,
    command,
  });
}

/** Bytes that an installation takes on the disk. */
export async function installedBytes(path: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(path, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) bytes += (await stat(join(entry.parentPath, entry.name))).size;
  }
  return bytes;
}

/** null: the harness needs no installation. Throws `unknown_harness`. */
function lockedHarness(name: string): LockedHarness | null {
  const install = harnessInstalls().get(name) ?? findHarness(name).install;
  return install === null ? null : { name, install, lockDir: lockFolder(name) };
}

async function installPath({ name, install, lockDir }: LockedHarness, cacheDir: string): Promise<string> {
  return join(cacheDir, name, await installationName(install, lockDir));
}

/** Makes an installation beside its place and moves it there when it has been seen to start. */
async function putInPlace({ name, install, lockDir }: LockedHarness, target: string): Promise<void> {
  const parent = join(target, '..');
  await mkdir(parent, { recursive: true });
  await removeAbandoned(parent);
  const temp = await mkdtemp(join(parent, `${TEMP_PREFIX}${process.pid}-`));
  try {
    await copyLock(install, lockDir, temp);
    if (install.source === 'pip') await installWithPip(name, temp, target);
    else await installWithNpm(name, temp);
    if (install.nodeVersion !== null) await linkNode(name, temp, install.nodeVersion);
    await proveStarts(name, install, temp);
    await makeReadable(temp);
    await moveTo(target, temp, install);
  } finally {
    await rm(temp, { recursive: true, force: true });
  }
}

/** Renaming fails when something is there: what another process has just finished stays, what has broken since goes. */
async function moveTo(target: string, temp: string, install: HarnessInstall): Promise<void> {
  try {
    await rename(temp, target);
  } catch {
    if (await isComplete(install, target)) return;
    await rm(target, { recursive: true, force: true });
    await rename(temp, target);
  }
}

/** An installation is moved into its place whole. One of pip's ends with the system's Python that it was made for. */
async function isComplete(install: HarnessInstall, path: string): Promise<boolean> {
  const part = install.source === 'pip' ? pythonPath(path) : path;
  return stat(part).then(
    () => true,
    () => false,
  );
}

/** Half-done installations of processes that are gone. */
async function removeAbandoned(parent: string): Promise<void> {
  for (const entry of await readdir(parent)) {
    const pid = Number(new RegExp(`^\\${TEMP_PREFIX}(\\d+)-`).exec(entry)?.[1]);
    if (Number.isNaN(pid) || isRunning(pid)) continue;
    await rm(join(parent, entry), { recursive: true, force: true });
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
