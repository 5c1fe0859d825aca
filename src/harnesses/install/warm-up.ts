import { mkdtemp, readdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { SANDBOX_UID } from '../../core/sandbox.ts';
import { compileCacheDir, type HarnessInstall } from '../harness.ts';
import { commandOf, programPath } from './catalog.ts';
import { makeReadable } from './permissions.ts';
import { runTool, type ToolFailure } from './run-tool.ts';

/** A program that only tells its version takes a second or two; a busy machine many times that. */
const WARM_UP_MS = 120_000;
/** Where a cache is filled; it gets its name when it is complete. */
const FILLING_PREFIX = '.compile-cache-';

/** Runs the program once, away from the user's own settings. Rejects with `setup_failed` when it does not start. */
export async function proveStarts(name: string, install: HarnessInstall, dir: string): Promise<void> {
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
  throw notStarting(name, dir, failure);
}

/**
 * Fills Node's compile cache of an installation in its final place, by one run of the program. Done once; a harness
 * without Node has none. Rejects with `setup_failed` when the program does not start.
 */
export async function fillCompileCache(name: string, install: HarnessInstall, dir: string): Promise<void> {
  const cache = compileCacheDir(dir);
  if (install.nodeVersion === null || (await exists(cache))) return;
  const filling = await mkdtemp(join(dir, FILLING_PREFIX));
  try {
    const env = { NODE_COMPILE_CACHE: filling };
    const failure = await runOnce(install, dir, install.warmUp, env);
    if (failure !== null) throw notStarting(name, dir, failure);
    if (install.cacheRun !== undefined) await runOnce(install, dir, install.cacheRun, env);
    // Node keeps its cache to its own user.
    await makeReadable(filling);
    await shareWithSandboxes(filling);
    await rename(filling, cache);
  } catch (error) {
    // Renaming fails when another process has just done the same.
    if (!(await exists(cache))) throw error;
  } finally {
    await rm(filling, { recursive: true, force: true });
  }
}

/** One run with nothing of the user's: a home of its own, no settings, no keys. */
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
      timeoutMs: WARM_UP_MS,
    });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

function notStarting(name: string, dir: string, failure: ToolFailure): FloeError {
  const message = `${name} was installed in ${dir} but does not start: ${failure.why}`;
  return new FloeError('setup_failed', message, { harness: name }, failure.cause);
}

/** Node keeps a cache per user id, named by it at the end: `v22.23.3-x64-9ac5647c-0`. */
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
