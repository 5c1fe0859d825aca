import { createHash } from 'node:crypto';
import { copyFile, mkdtemp, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { assetPath, ensureWritableDir, FloeError, freeBytes, MIB } from '@floe-rl/core';
import type { HarnessAdapter, HarnessInstall } from '../harness.ts';
import { findHarness } from '../registry.ts';
import { removeAbandoned, TEMP_PREFIX } from './abandoned.ts';
import { harnessInstalls, pythonPath } from './catalog.ts';
import { installWithNpm, linkNode } from './npm.ts';
import { makeReadable } from './permissions.ts';
import { installWithPip } from './pip.ts';
import { checkStart, fillCompileCache } from './warm-up.ts';

type InstallOptions = {
  /** Directory that contains all installations. The path of each is `<cacheDir>/<harness>/<version>-<digest of the lock file>/`. */
  readonly cacheDir: string;
  readonly log: (line: string) => void;
  /** Stops the installation, which then rejects with the signal's reason after every tool that it started has ended. */
  readonly signal?: AbortSignal;
};

type HarnessStatus = {
  readonly installed: boolean;
  /** Directory of the installation; `null` when the harness is not installed or needs no installation. */
  readonly path: string | null;
};

/** The description of a harness's installation, and the directory that contains its lock file. */
export type LockedHarness = {
  readonly name: string;
  readonly install: HarnessInstall;
  readonly lockDir: string;
};

/** Text for error messages about an installation directory that cannot be used. It states how to choose another one. */
const CHOOSE_DIR = 'set FLOE_HARNESS_DIR or XDG_CACHE_HOME to a directory that you can write to';

/** Number of hexadecimal digits of the lock file's SHA-256 digest in the directory name of an installation. */
const DIGEST_CHARS = 12;

/**
 * Names of the files that are copied from a lock directory into the installation, by the kind of installation. The first file is the lock
 * itself.
 */
const LOCK_FILES = {
  npm: ['package-lock.json', 'package.json'],
  pip: ['requirements.txt'],
} as const satisfies Record<HarnessInstall['source'], readonly string[]>;

/**
 * Installs a harness exactly as its lock file pins it; no scripts of packages are run. Returns the directory of the installation, or `null`
 * when the harness needs no installation. May be called repeatedly, and by two processes at the same time. Rejects with `unknown_harness`,
 * or with `setup_failed` when the directory cannot be written to, a tool is missing or fails, or the program does not start.
 */
export async function installHarness(name: string, options: InstallOptions): Promise<string | null> {
  const locked = lockedHarness(name);
  return locked === null ? null : installLocked(locked, options);
}

/** Installs a harness from any lock directory, in the same way as {@link installHarness}. */
export async function installLocked(locked: LockedHarness, options: InstallOptions): Promise<string> {
  const { cacheDir, log, signal = new AbortController().signal } = options;
  const { name, install } = locked;
  const target = await installPath(locked, cacheDir);
  if (!(await isComplete(install, target))) {
    log(`installing ${name} ${install.version} into ${target}`);
    await buildInstallation(locked, target, signal);
    log(`installed ${name} ${install.version}`);
  }
  await fillCompileCache(name, install, target, signal);
  return target;
}

/** Determines whether and where a harness is installed. Rejects with `unknown_harness` for an unknown name. */
export async function harnessStatus(name: string, cacheDir: string): Promise<HarnessStatus> {
  const locked = lockedHarness(name);
  return locked === null ? { installed: true, path: null } : lockedStatus(locked, cacheDir);
}

/** Determines whether and where a harness with any lock directory is installed. */
export async function lockedStatus(locked: LockedHarness, cacheDir: string): Promise<HarnessStatus> {
  const path = await installPath(locked, cacheDir);
  const installed = await isComplete(locked.install, path);
  return { installed, path: installed ? path : null };
}

/**
 * Returns the directory of an installed harness; `null` when the harness needs no installation. Rejects with `harness_missing` when the
 * harness is not installed.
 */
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

/** Returns the total size of an installation's files in bytes. */
export async function installedBytes(path: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(path, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) bytes += (await stat(join(entry.parentPath, entry.name))).size;
  }
  return bytes;
}

/**
 * Returns the description of a harness's installation and its lock directory; `null` when the harness needs no installation. Throws
 * `unknown_harness` for an unknown name.
 */
function lockedHarness(name: string): LockedHarness | null {
  const install = harnessInstalls().get(name) ?? findHarness(name).install;
  return install === null ? null : { name, install, lockDir: join(assetPath(import.meta.url, 'harness-locks'), name) };
}

async function installPath({ name, install, lockDir }: LockedHarness, cacheDir: string): Promise<string> {
  return join(cacheDir, name, await installationName(install, lockDir));
}

/** Returns the directory name `<version>-<digest of the lock>`, so that a changed lock leads to a separate installation. */
async function installationName(install: HarnessInstall, lockDir: string): Promise<string> {
  const lock = await readFile(join(lockDir, LOCK_FILES[install.source][0]));
  const digest = createHash('sha256').update(lock).digest('hex').slice(0, DIGEST_CHARS);
  return `${install.version}-${digest}`;
}

/**
 * Builds an installation in a temporary directory next to `target`, checks that the program starts, and then moves the directory to
 * `target`.
 */
async function buildInstallation(
  { name, install, lockDir }: LockedHarness,
  target: string,
  signal: AbortSignal,
): Promise<void> {
  const parent = join(target, '..');
  ensureWritableDir(parent, CHOOSE_DIR);
  await removeAbandoned(parent);
  refuseFullDisk(name, install, parent);
  const temp = await mkdtemp(join(parent, `${TEMP_PREFIX}${process.pid}-`));
  try {
    for (const file of LOCK_FILES[install.source]) await copyFile(join(lockDir, file), join(temp, file));
    if (install.source === 'pip') await installWithPip(name, temp, target, signal);
    else await installWithNpm(name, temp, signal);
    if (install.nodeVersion !== null) await linkNode(name, temp, install.nodeVersion, signal);
    await checkStart(name, install, temp, signal);
    await makeReadable(temp);
    await moveToTarget(target, temp, install);
  } finally {
    await rm(temp, { recursive: true, force: true });
  }
}

/** Throws `setup_failed` when the disk of the directory `parent` has less free space than the installation needs. */
function refuseFullDisk(name: string, { diskMb }: HarnessInstall, parent: string): void {
  const free = freeBytes(parent);
  if (free === null || free >= diskMb * MIB) return;
  const message = `the disk of ${parent} has ${Math.floor(free / MIB)} MB free, and ${name} needs about ${diskMb} MB there; free space, or ${CHOOSE_DIR}`;
  throw new FloeError('setup_failed', message, { harness: name, path: parent, free_bytes: free });
}

/**
 * Moves a new installation from `temp` to `target`. Renaming fails when `target` exists. A complete installation at `target`, made by
 * another process, is then kept; a broken one is replaced.
 */
async function moveToTarget(target: string, temp: string, install: HarnessInstall): Promise<void> {
  try {
    await rename(temp, target);
  } catch {
    if (await isComplete(install, target)) return;
    await rm(target, { recursive: true, force: true });
    await rename(temp, target);
  }
}

/**
 * Whether the installation at `path` is complete. An installation is moved to its path as a whole, so it is complete when the path exists.
 * An installation made by pip also needs the system's Python for which it was made.
 */
async function isComplete(install: HarnessInstall, path: string): Promise<boolean> {
  const part = install.source === 'pip' ? pythonPath(path) : path;
  return stat(part).then(
    () => true,
    () => false,
  );
}
