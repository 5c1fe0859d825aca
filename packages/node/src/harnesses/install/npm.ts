import { execFile } from 'node:child_process';
import { symlink } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ensureWritableDir, FloeError, runTool } from '@floe-rl/core';

/**
 * Command that installs exactly the packages of the lock. Scripts are disabled, because a package's script could download and run anything.
 * The check of Node's version is off, because the harness does not run on the Node that runs npm: it is a native program or includes its
 * own Node.
 */
const NPM_CI = [
  'npm',
  'ci',
  '--ignore-scripts',
  '--omit=dev',
  '--engine-strict=false',
  '--no-audit',
  '--no-fund',
  '--no-update-notifier',
  // Sets the log level, so that the reason of a failure is printed even if floe was started by an npm with a quieter log level.
  '--loglevel=error',
];

/** Installs the packages of the lock file in `dir`. Rejects with `setup_failed` when npm is missing or fails, or cannot write to its cache. */
export async function installWithNpm(name: string, dir: string, signal: AbortSignal): Promise<void> {
  await refuseUnwritableCache(dir, signal);
  const failure = await runTool(NPM_CI, { cwd: dir, env: process.env, signal });
  if (failure === null) return;
  const message = failure.missing
    ? 'npm is not installed; it comes with Node from https://nodejs.org'
    : `npm could not install ${name}: ${failure.reason}`;
  throw new FloeError('setup_failed', message, { harness: name }, failure.cause);
}

/**
 * Throws `setup_failed` when npm's cache cannot be written to. The message of npm itself advises to change the owner of files, which does not
 * help when the home directory is read-only.
 */
async function refuseUnwritableCache(dir: string, signal: AbortSignal): Promise<void> {
  const remedy = 'set npm_config_cache to a directory that you can write to';
  try {
    ensureWritableDir(process.env.npm_config_cache ?? join(homedir(), '.npm'), remedy);
  } catch {
    // The user's settings may name another cache. npm takes half a second to print them, so it is asked only now.
    const asked = await promisify(execFile)('npm', ['config', 'get', 'cache'], { cwd: dir, signal }).catch(() => null);
    if (asked !== null) ensureWritableDir(asked.stdout.trim(), remedy);
  }
}

/**
 * Creates the link `node` in the installation's root to the Node program that the installation contains for this platform. Rejects with
 * `setup_failed` when the installation contains no Node that runs here.
 */
export async function linkNode(name: string, dir: string, nodeVersion: string, signal: AbortSignal): Promise<void> {
  const platform = `${process.platform}-${process.arch}`;
  for (const candidate of [`node-${platform}`, `node-bin-${platform}`]) {
    const program = join('node_modules', candidate, 'bin', 'node');
    const check = `process.versions.node.split('.')[0] === '${nodeVersion}' || process.exit(1)`;
    const failure = await runTool([join(dir, program), '-e', check], { cwd: dir, env: {}, signal });
    if (failure !== null) continue;
    await symlink(program, join(dir, 'node'));
    return;
  }
  throw new FloeError('setup_failed', `${name} needs Node ${nodeVersion}, which is not packaged for ${platform}`, {
    harness: name,
  });
}
