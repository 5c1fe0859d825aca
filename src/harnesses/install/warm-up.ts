import { mkdtemp, readdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { SANDBOX_UID } from '../../core/sandbox.ts';
import { compileCacheDir, type HarnessInstall } from '../harness.ts';
import { commandOf, programPath } from './catalog.ts';
import { makeReadable } from './permissions.ts';
import { runTool, type ToolFailure } from './run-tool.ts';

/** Time limit of one run. Printing a version takes a second or two, and many times that on a busy machine. */
const WARM_UP_TIMEOUT_MS = 120_000;
/** Prefix of the temporary directory in which a cache is built. It is renamed when the cache is complete. */
const TEMP_CACHE_PREFIX = '.compile-cache-';

/** Checks that the program starts, by running it once without the user's settings. Rejects with `setup_failed` when it does not start. */
export async function checkStart(name: string, install: HarnessInstall, dir: string): Promise<void> {
  const program = programPath(install, dir);
  if (!(await exists(program))) {
    const platform = `${process.platform}-${process.arch}`;
    throw new FloeError('setup_failed', `${name} is not packaged for ${platform} with this C library`, {
      harness: name,
      program,
    });
  }
  const failure = await runOnce(install, dir, install.warmUp, {});
  if (failure === null) return;
  throw startFailure(name, dir, failure);
}

/**
 * Fills Node's compile cache by running the program once, after the installation was moved to its final path. Does nothing when the
 * cache exists, or for a harness without Node. Rejects with `setup_failed` when the program does not start.
 */
export async function fillCompileCache(name: string, install: HarnessInstall, dir: string): Promise<void> {
  const cache = compileCacheDir(dir);
  if (install.nodeVersion === null || (await exists(cache))) return;
  const filling = await mkdtemp(join(dir, TEMP_CACHE_PREFIX));
  try {
    const env = { NODE_COMPILE_CACHE: filling };
    const failure = await runOnce(install, dir, install.warmUp, env);
    if (failure !== null) throw startFailure(name, dir, failure);
    if (install.cacheRun !== undefined) await runOnce(install, dir, install.cacheRun, env);
    // Node makes its cache readable only to the user that wrote it.
    await makeReadable(filling);
    await shareWithSandboxes(filling);
    await rename(filling, cache);
  } catch (error) {
    // Renaming fails when another process has just created the cache; that cache is used.
    if (!(await exists(cache))) throw error;
  } finally {
    await rm(filling, { recursive: true, force: true });
  }
}

/** Runs the program once with an empty home directory, and therefore without the user's settings and keys. */
async function runOnce(
  install: HarnessInstall,
  dir: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<ToolFailure | null> {
  const home = await mkdtemp(join(tmpdir(), 'floe-warm-up-'));
  try {
    return await runTool([...commandOf(install, dir), ...args], {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, TMPDIR: home, ...install.warmUpEnv, ...env },
      timeoutMs: WARM_UP_TIMEOUT_MS,
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
 * Links the cache under the name that Node uses for the sandbox user. Node appends the user id to the name of a cache, as in
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
