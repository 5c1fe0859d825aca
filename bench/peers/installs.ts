// Installs the proxies that floe's is compared with, at fixed versions and without running their install scripts, into floe's cache folder.
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheDir } from '#floe/commands/cache-dir';
import { findPython, run, venvAt } from '../../verify/services/venv.ts';

const FOLDER = join(cacheDir(), 'peers');

/** The packages that are installed, and the disk space in megabytes of each with its dependencies. */
export const PACKAGES = {
  portkey: { name: '@portkey-ai/gateway', version: '1.15.2', mb: 25 },
  litellm: { name: 'litellm[proxy]', version: '1.106.2', mb: 740 },
  rllm: { name: 'rllm-model-gateway', version: '0.1.0', mb: 50 },
} as const;

/** Returns the module that starts Portkey's server. Installs it with npm if it is missing. Throws an Error that names the failed command. */
export function installPortkey(): string {
  const { name, version } = PACKAGES.portkey;
  const folder = folderOf('portkey');
  installOnce(folder, 'portkey', () =>
    run('npm', ['install', '--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', `${name}@${version}`]),
  );
  return join(folder, 'node_modules', name, 'build', 'start-server.js');
}

/** Returns the folder of the programs of a Python package. Installs it if it is missing. Throws an Error that names the failed command. */
export function installPython(peer: 'litellm' | 'rllm'): string {
  const { name, version } = PACKAGES[peer];
  const folder = folderOf(peer);
  // A package without a wheel would run its build script.
  installOnce(folder, peer, () =>
    venvAt(folder, findPython(11, 13)).pip('install', '--quiet', '--only-binary', ':all:', `${name}==${version}`),
  );
  return join(folder, 'bin');
}

function folderOf(peer: keyof typeof PACKAGES): string {
  return join(FOLDER, `${peer}-${PACKAGES[peer].version}`);
}

function installOnce(folder: string, peer: keyof typeof PACKAGES, install: () => void): void {
  const stamp = join(folder, 'installed');
  if (existsSync(stamp)) return;
  const { name, version, mb } = PACKAGES[peer];
  console.error(`installing ${name} ${version} (${mb} MB) into ${folder}`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  install();
  writeFileSync(stamp, '');
}
