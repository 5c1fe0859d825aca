import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { FloeError } from '../core/errors.ts';
import { SANDBOX_UID } from '../core/sandbox-user.ts';
import { compileCacheDir, type HarnessAdapter, type HarnessInstall } from './harness.ts';
import { findHarness } from './registry.ts';

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

/** Enough of the digest to tell two lock files apart. */
const DIGEST_CHARS = 12;
/** npm reports every package that it warns about. */
const NPM_OUTPUT_BYTES = 16 * 1024 * 1024;
const NPM_STDERR_CHARS = 1_000;
/** A program that only tells its version takes a second. */
const WARM_UP_MS = 60_000;
const TEMP_PREFIX = '.installing-';

const run = promisify(execFile);

/**
 * Installs a harness from its lock file: nothing of it is resolved anew, no package runs a script. Returns its
 * directory; null when there is nothing to install. Safe to repeat, and safe when two processes do it at once.
 * Rejects with `unknown_harness`, or `setup_failed` when npm is missing or fails.
 */
export async function installHarness(name: string, { cacheDir, log }: InstallOptions): Promise<string | null> {
  const adapter = findHarness(name);
  if (adapter.install === null) return null;
  const target = await installPath(adapter, adapter.install.version, cacheDir);
  if (await isDirectory(target)) {
    await warmUp(adapter, adapter.install, target);
    return target;
  }
  const parent = join(cacheDir, name);
  await mkdir(parent, { recursive: true });
  await removeAbandoned(parent);
  const temp = await mkdtemp(join(parent, `${TEMP_PREFIX}${process.pid}-`));
  try {
    log(`installing ${name} ${adapter.install.version} into ${target}`);
    for (const file of ['package.json', 'package-lock.json'])
      await copyFile(join(lockDir(name), file), join(temp, file));
    await npmCi(name, temp);
    await linkNode(name, temp, adapter.install.nodeVersion);
    // Sandboxes run as other users; there is nothing secret in an installation.
    await chmod(temp, 0o755);
    await rename(temp, target);
    await warmUp(adapter, adapter.install, target);
    log(`installed ${name} ${adapter.install.version}`);
    return target;
  } catch (error) {
    // Renaming fails when another process has just finished the same installation.
    if (await isDirectory(target)) return target;
    throw error;
  } finally {
    await rm(temp, { recursive: true, force: true });
  }
}

/** Rejects with `unknown_harness`. */
export async function harnessStatus(name: string, cacheDir: string): Promise<HarnessStatus> {
  const adapter = findHarness(name);
  if (adapter.install === null) return { installed: true, path: null };
  const path = await installPath(adapter, adapter.install.version, cacheDir);
  const installed = await isDirectory(path);
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

/** The folder `harness-locks/` is at the same place relative to `src/` and to `dist/`. */
function lockDir(name: string): string {
  return fileURLToPath(new URL(`../../harness-locks/${name}`, import.meta.url));
}

async function installPath(adapter: HarnessAdapter, version: string, cacheDir: string): Promise<string> {
  const lock = await readFile(join(lockDir(adapter.name), 'package-lock.json'));
  const digest = createHash('sha256').update(lock).digest('hex').slice(0, DIGEST_CHARS);
  return join(cacheDir, adapter.name, `${version}-${digest}`);
}

async function npmCi(name: string, cwd: string): Promise<void> {
  // The harness brings its own Node, so the version that runs npm does not matter.
  const flags = ['--ignore-scripts', '--omit=dev', '--engine-strict=false', '--no-audit', '--no-fund'];
  try {
    await run('npm', ['ci', ...flags], { cwd, maxBuffer: NPM_OUTPUT_BYTES });
  } catch (cause) {
    const { code, stderr } = cause as { code?: unknown; stderr?: string };
    if (code === 'ENOENT') {
      throw new FloeError(
        'setup_failed',
        'npm is not installed; it comes with Node from https://nodejs.org',
        {},
        cause,
      );
    }
    const why = (stderr ?? String(cause)).trim().slice(-NPM_STDERR_CHARS);
    throw new FloeError('setup_failed', `npm could not install ${name}: ${why}`, { harness: name }, cause);
  }
}

/** Puts `node` into the installation's root, whatever the platform's package is called. */
async function linkNode(name: string, dir: string, nodeVersion: string): Promise<void> {
  const packages = [`node-${process.platform}-${process.arch}`, `node-bin-${process.platform}-${process.arch}`];
  for (const candidate of packages) {
    const program = join('node_modules', candidate, 'bin', 'node');
    const version = await run(join(dir, program), ['--version']).then(
      ({ stdout }) => stdout.trim(),
      () => null,
    );
    if (version === null) continue;
    if (!version.startsWith(`v${nodeVersion}.`)) break;
    await symlink(program, join(dir, 'node'));
    return;
  }
  const platform = `${process.platform}-${process.arch}`;
  throw new FloeError('setup_failed', `${name} needs Node ${nodeVersion}, which is not packaged for ${platform}`);
}

/** Runs the program once in its final place. Rejects with `setup_failed` when it does not start. Done once per installation. */
async function warmUp(adapter: HarnessAdapter, install: HarnessInstall, dir: string): Promise<void> {
  const cache = compileCacheDir(dir);
  if (await isDirectory(cache)) return;
  const home = await mkdtemp(join(tmpdir(), 'floe-warm-up-'));
  const [program = '', ...args] = install.warmUp;
  try {
    await run(join(dir, 'node'), [join(dir, program), ...args], {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, NODE_COMPILE_CACHE: cache },
      timeout: WARM_UP_MS,
    });
    await makeReadable(cache);
    await shareWithSandboxes(cache);
  } catch (cause) {
    const { stderr } = cause as { stderr?: string };
    const why = (stderr ?? String(cause)).trim().slice(-NPM_STDERR_CHARS);
    throw new FloeError('setup_failed', `${adapter.name} is installed in ${dir} but does not start: ${why}`, {}, cause);
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

/** Node keeps its cache to its own user, but sandboxes run as others. */
async function makeReadable(dir: string): Promise<void> {
  await chmod(dir, 0o755);
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    await chmod(join(entry.parentPath, entry.name), entry.isDirectory() ? 0o755 : 0o644);
  }
}

/** Node keeps a cache per user id, named by it at the end: `v22.23.3-x64-9ac5647c-0`. */
async function shareWithSandboxes(cache: string): Promise<void> {
  for (const name of await readdir(cache)) {
    const shared = name.replace(/-\d+$/, `-${SANDBOX_UID}`);
    if (shared !== name) await symlink(name, join(cache, shared));
  }
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

function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isDirectory(),
    () => false,
  );
}
