import { symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { runTool } from './run-tool.ts';

/**
 * What is in the lock and nothing else. The harness brings its own Node or is a native program, so the version of the
 * Node that runs npm does not matter. A package's script could fetch and run anything.
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
  // An npm that runs floe may have been told to be silent; why an installation failed is wanted all the same.
  '--loglevel=error',
];

/** Rejects with `setup_failed` when npm is missing or fails. */
export async function installWithNpm(name: string, dir: string): Promise<void> {
  const failure = await runTool(NPM_CI, { cwd: dir, env: process.env });
  if (failure === null) return;
  const message = failure.missing
    ? 'npm is not installed; it comes with Node from https://nodejs.org'
    : `npm could not install ${name}: ${failure.why}`;
  throw new FloeError('setup_failed', message, { harness: name }, failure.cause);
}

/** Puts `node` into the installation's root, whatever the platform's package is called. Rejects with `setup_failed`. */
export async function linkNode(name: string, dir: string, nodeVersion: string): Promise<void> {
  const platform = `${process.platform}-${process.arch}`;
  for (const candidate of [`node-${platform}`, `node-bin-${platform}`]) {
    const program = join('node_modules', candidate, 'bin', 'node');
    const check = `process.versions.node.split('.')[0] === '${nodeVersion}' || process.exit(1)`;
    const failure = await runTool([join(dir, program), '-e', check], { cwd: dir, env: {} });
    if (failure !== null) continue;
    await symlink(program, join(dir, 'node'));
    return;
  }
  throw new FloeError('setup_failed', `${name} needs Node ${nodeVersion}, which is not packaged for ${platform}`, {
    harness: name,
  });
}
