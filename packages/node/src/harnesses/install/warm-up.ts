import { mkdtemp, readdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, makeTempDir, runTool, systemError, type ToolFailure } from '@floe-rl/core';
import { SANDBOX_UID } from '@floe-rl/sandbox';
import { compileCacheDir, type HarnessInstall } from '../harness.ts';
import { commandOf, programPath } from './catalog.ts';
import { makeReadable } from './permissions.ts';

/**
 * Time limit in milliseconds of one run of an installed program. Printing a version takes one or two seconds, but many times that on a busy
 * machine.
 */
const WARM_UP_TIMEOUT_MS = 120_000;
/** Prefix of the temporary directory in which a compile cache is built. The directory is renamed when the cache is complete. */
const TEMP_CACHE_PREFIX = '.compile-cache-';

/**
 * Checks that an installed program starts, by running it once without the user's settings. Rejects with `setup_failed` when it does not
 * start.
 */
export async function checkStart(
  name: string,
  install: HarnessInstall,
  dir: string,
  signal: AbortSignal,
): Promise<void> {
  const program = programPath(install, dir);
  if (!(await exists(program))) {
    const platform = `${process.platform}-${process.arch}`;
    throw new FloeError('setup_failed', `${name} is not packaged for ${platform} with this C library`, {
      harness: name,
      program,
    });
  }
  const failure = await runOnce(install, dir, install.warmUp, {}, signal);
  if (failure === null) return;
  throw startFailure(name, dir, failure);
}

/**
 * Fills Node's compile cache by running the installed program once, after the installation was moved to its final path. Does nothing when
 * the cache exists, the harness does not run on Node, or this user cannot write to the installation. Rejects with `setup_failed` when the program does not start.
 */
export async function fillCompileCache(
  name: string,
  install: HarnessInstall,
  dir: string,
  signal: AbortSignal,
): Promise<void> {
  const cache = compileCacheDir(dir);
  if (install.nodeVersion === null || (await exists(cache))) return;
  const filling = await mkdtemp(join(dir, TEMP_CACHE_PREFIX)).catch((error: unknown) => {
    // The program also runs without the cache, so an installation that this user cannot write to is used as it is.
    if (systemError(error) === null) throw error;
    return null;
  });
  if (filling === null) return;
  try {
    const env = { NODE_COMPILE_CACHE: filling };
    const failure = await runOnce(install, dir, install.warmUp, env, signal);
    if (failure !== null) throw startFailure(name, dir, failure);
    if (install.cacheRun !== undefined) await runOnce(install, dir, install.cacheRun, env, signal);
    // Node makes its compile cache readable only to the user that wrote it, but sandboxes run as other users.
    await makeReadable(filling);
    await shareWithSandboxes(filling);
    await rename(filling, cache);
  } catch (error) {
    // Renaming fails when another process has just created the cache. That process's cache is then used.
    if (!(await exists(cache))) throw error;
  } finally {
    await rm(filling, { recursive: true, force: true });
  }
}

/** Runs the installed program once with an empty home directory, so that it finds none of the user's settings and keys. */
async function runOnce(
  install: HarnessInstall,
  dir: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<ToolFailure | null> {
  const home = makeTempDir('floe-warm-up-');
  try {
    return await runTool([...commandOf(install, dir), ...args], {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, TMPDIR: home, ...install.warmUpEnv, ...env },
      timeoutMs: WARM_UP_TIMEOUT_MS,
      signal,
    });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

function startFailure(name: string, dir: string, failure: ToolFailure): FloeError {
  const message = `${name} was installed in ${dir} but does not start: ${failure.reason}`;
  return new FloeError('setup_failed', message, { harness: name }, failure.cause);
}

/**
 * Links the compile cache under the name that Node uses for the sandbox's user. Node appends the user id to a cache's name, as in
 * `v22.23.3-x64-9ac5647c-0`.
 */
async function shareWithSandboxes(cache: string): Promise<void> {
  for (const name of await readdir(cache)) {
    const shared = name.replace(/-\d+$/, `-${SANDBOX_UID}`);
    if (shared !== name) await symlink(name, join(cache, shared));
  }
}

function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
