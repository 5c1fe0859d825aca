import { chmod, mkdtemp, readdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { SANDBOX_UID } from '../../core/sandbox-user.ts';
import { compileCacheDir, type HarnessInstall } from '../harness.ts';
import { commandOf, programPath } from '../installs.ts';
import { runTool } from './run-tool.ts';

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
  await runOnce(name, install, dir, {});
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
    await runOnce(name, install, dir, { NODE_COMPILE_CACHE: filling });
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

async function runOnce(
  name: string,
  install: HarnessInstall,
  dir: string,
  env: Readonly<Record<string, string>>,
): Promise<void> {
  const home = await mkdtemp(join(tmpdir(), 'floe-warm-up-'));
  try {
    const failure = await runTool([...commandOf(install, dir), ...install.warmUp], {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, TMPDIR: home, ...install.warmUpEnv, ...env },
      timeoutMs: WARM_UP_MS,
    });
    if (failure === null) return;
    throw new FloeError(
      'setup_failed',
      `${name} was installed in ${dir} but does not start: ${failure.why}`,
      { harness: name },
      failure.cause,
    );
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

function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
