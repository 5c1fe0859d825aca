import { symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { runTool } from './run-tool.ts';

/**
 * Command that installs exactly the packages in the lock. Scripts are disabled because a package's script could download and run
 * anything. The engine check is off because the harness does not run on the Node that runs npm: it is native or includes its own Node.
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
  // This option overrides a log level inherited from an npm that runs floe, so that the reason of a failure is printed.
  '--loglevel=error',
];

/** Installs the packages of the lock in `dir`. Rejects with `setup_failed` when npm is missing or fails. */
export async function installWithNpm(name: string, dir: string): Promise<void> {
  const failure = await runTool(NPM_CI, { cwd: dir, env: process.env });
  if (failure === null) return;
  const message = failure.missing
    ? 'npm is not installed; it comes with Node from https://nodejs.org'
    : `npm could not install ${name}: ${failure.reason}`;
  throw new FloeError('setup_failed', message, { harness: name }, failure.cause);
}

/**
 * Links `node` in the installation's root to the Node of the package for this platform. Rejects with `setup_failed` when no such Node
 * runs.
 */
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
