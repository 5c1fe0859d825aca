import { createHash } from 'node:crypto';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { packageRoot } from '../../core/package-root.ts';
import type { HarnessAdapter, HarnessInstall } from '../harness.ts';
import { findHarness } from '../registry.ts';
import { harnessInstalls, pythonPath } from './catalog.ts';
import { installWithNpm, linkNode } from './npm.ts';
import { makeReadable } from './permissions.ts';
import { installWithPip } from './pip.ts';
import { checkStart, fillCompileCache } from './warm-up.ts';

type InstallOptions = {
  /** Directory that contains all installations. Each has the path `<cacheDir>/<harness>/<version>-<digest of the lock file>/`. */
  readonly cacheDir: string;
  readonly log: (line: string) => void;
};

type HarnessStatus = {
  readonly installed: boolean;
  /** Directory of the installation; `null` when it is not installed, or when there is nothing to install. */
  readonly path: string | null;
};

/** The installation of a harness, and the directory that contains its lock. */
export type LockedHarness = {
  readonly name: string;
  readonly install: HarnessInstall;
  readonly lockDir: string;
};

/** Number of hexadecimal digits of a lock's digest in the name of an installation. */
const DIGEST_CHARS = 12;

/** Names of the files that an installation copies from a lock directory. The first one is the lock itself. */
const LOCK_FILES = {
  npm: ['package-lock.json', 'package.json'],
  pip: ['requirements.txt'],
} as const satisfies Record<HarnessInstall['source'], readonly string[]>;

/** Prefix of the temporary directories in which installations are built. The id of the building process follows it. */
const TEMP_PREFIX = '.installing-';

/**
 * Installs a harness exactly as its lock file pins it; no package runs a script. Returns its directory; `null` when there is nothing to
 * install. It may be called repeatedly, and by two processes at the same time. Rejects with `unknown_harness`, or with `setup_failed`
 * when a tool is missing or fails, or when the program does not start.
 */
export async function installHarness(name: string, options: InstallOptions): Promise<string | null> {
  const locked = lockedHarness(name);
  return locked === null ? null : installLocked(locked, options);
}

/** Does the same as {@link installHarness} for any lock. */
export async function installLocked(locked: LockedHarness, { cacheDir, log }: InstallOptions): Promise<string> {
  const { name, install } = locked;
  const target = await installPath(locked, cacheDir);
  if (!(await isComplete(install, target))) {
    log(`installing ${name} ${install.version} into ${target}`);
    await buildInstallation(locked, target);
    log(`installed ${name} ${install.version}`);
  }
  await fillCompileCache(name, install, target);
  return target;
}

/** Determines whether and where a harness is installed. Rejects with `unknown_harness`. */
export async function harnessStatus(name: string, cacheDir: string): Promise<HarnessStatus> {
  const locked = lockedHarness(name);
  if (locked === null) return { installed: true, path: null };
  const path = await installPath(locked, cacheDir);
  const installed = await isComplete(locked.install, path);
  return { installed, path: installed ? path : null };
}

/**
 * Returns the directory of an installed harness; `null` when it needs no installation. Rejects with `harness_missing` when it is not
 * installed.
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

/** Returns the installation and the lock of a harness; `null` when it needs no installation. Throws `unknown_harness`. */
function lockedHarness(name: string): LockedHarness | null {
  const install = harnessInstalls().get(name) ?? findHarness(name).install;
  return install === null ? null : { name, install, lockDir: join(packageRoot(), 'harness-locks', name) };
}

async function installPath({ name, install, lockDir }: LockedHarness, cacheDir: string): Promise<string> {
  return join(cacheDir, name, await installationName(install, lockDir));
}

/** Returns the directory name `<version>-<digest of the lock>`, so that another lock is another installation. */
async function installationName(install: HarnessInstall, lockDir: string): Promise<string> {
  const lock = await readFile(join(lockDir, LOCK_FILES[install.source][0]));
  const digest = createHash('sha256').update(lock).digest('hex').slice(0, DIGEST_CHARS);
  return `${install.version}-${digest}`;
}

/** Builds an installation in a temporary directory next to the target, and moves it to the target after the program has started. */
async function buildInstallation({ name, install, lockDir }: LockedHarness, target: string): Promise<void> {
  const parent = join(target, '..');
  await mkdir(parent, { recursive: true });
  await removeAbandoned(parent);
  const temp = await mkdtemp(join(parent, `${TEMP_PREFIX}${process.pid}-`));
  try {
    for (const file of LOCK_FILES[install.source]) await copyFile(join(lockDir, file), join(temp, file));
    if (install.source === 'pip') await installWithPip(name, temp, target);
    else await installWithNpm(name, temp);
    if (install.nodeVersion !== null) await linkNode(name, temp, install.nodeVersion);
    await checkStart(name, install, temp);
    await makeReadable(temp);
    await moveToTarget(target, temp, install);
  } finally {
    await rm(temp, { recursive: true, force: true });
  }
}

/**
 * Moves an installation to its path. Renaming fails when the path exists: a complete installation, made by another process, is kept; a
 * broken one is replaced.
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
 * Whether an installation is complete. It is moved to its path as a whole, so it is complete when the path exists. An installation made
 * by pip also needs the system's Python for which it was made.
 */
async function isComplete(install: HarnessInstall, path: string): Promise<boolean> {
  const part = install.source === 'pip' ? pythonPath(path) : path;
  return stat(part).then(
    () => true,
    () => false,
  );
}

/** Removes the temporary directories of processes that no longer run. */
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
