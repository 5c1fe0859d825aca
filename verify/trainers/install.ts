// Installs the packages of trainers from PyPI, at fixed versions, into one virtual environment for each: their requirements exclude each
// other. `uv` links the files that environments share, so that torch is stored once.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { run, venvAt } from '../services/venv.ts';

/** Folder of the environments: `$FLOE_TRAINERS_HOME`, else a folder in the user's cache directory. */
const TRAINERS_HOME = process.env.FLOE_TRAINERS_HOME ?? join(homedir(), '.cache', 'floe', 'trainers');

const UV = 'uv==0.13.9';
/** The version of Python of all environments: some trainers need at least this one, others at most. */
const PYTHON = '3.12';
/** PyPI has no CPU build of torch. This CUDA build runs on CPUs too. */
const TORCH = 'torch==2.13.0';

/** The arguments of `uv pip install`, one list for each call. */
type Environment = readonly (readonly string[])[];

export const ENVIRONMENTS = {
  trl: [[TORCH, 'trl==1.16.0', 'peft', 'aiohttp', 'requests']],
  // The requirements of verl leave out packages that its agent loop imports.
  verl: [
    [...[TORCH, 'verl==0.9.1', 'cachetools', 'uvicorn', 'fastapi', 'pyzmq', 'msgspec', 'qwen_vl_utils', 'mathruler']],
  ],
  // AReaL requires an older torch, and CUDA packages that are not used here.
  areal: [
    [TORCH, 'transformers<=5.3.0'],
    ['--no-deps', 'areal==1.0.4'],
    [
      ...['hydra-core==1.4.0.dev1', 'omegaconf==2.4.0.dev2', 'openai', 'anthropic', 'aiohttp', 'httpx', 'fastapi'],
      ...['uvicorn', 'colorlog', 'tenacity', 'flask', 'torchdata', 'lark', 'uvloop', 'ray', 'numba', 'pillow'],
      ...['orjson', 'einops', 'aiofiles', 'peft', 'datasets', 'swanlab', 'trackio', 'wandb', 'tensorboardX'],
      ...['tabulate', 'pybase64'],
    ],
  ],
  skyrl: [
    [
      ...[TORCH, 'skyrl[tinker,jax]==0.4.0', 'loguru', 'skyrl-gym', 'pybase64', 'ray==2.57.0', 'torchdata'],
      ...['jaxtyping', 'aiohttp'],
    ],
  ],
  // OpenRLHF requires vLLM, DeepSpeed and flash-attn, which are not used here.
  openrlhf: [
    [TORCH, 'transformers==5.16.1', 'ray==2.57.0'],
    ['--no-deps', 'openrlhf==0.11.2'],
  ],
  art: [[TORCH, 'openpipe-art==0.5.23', 'transformers==5.24.0']],
  // What the sources of trainers import that no package registry has, for the option `--source`. NeMo-RL refuses newer transformers.
  sources: [
    [
      ...[TORCH, 'transformers==5.10.4', 'ray==2.57.0', 'tensordict==0.15.3', 'msgspec==0.22.0'],
      ...['prime-pydantic-config==0.4.3', 'tinker==0.38.0', 'pillow', 'chz', 'termcolor'],
    ],
    ['--no-deps', 'tinker-cookbook==0.6.1', 'tml-renderers==0.2.1'],
  ],
} as const satisfies Record<string, Environment>;

export type EnvironmentName = keyof typeof ENVIRONMENTS;

/** The command that installs all environments. */
export const INSTALL_COMMAND = 'npm run verify -- trainers --install';

/** Returns the Python program of an environment; `null` when the environment is not installed with the versions that this file names. */
export function installedPython(name: EnvironmentName): string | null {
  const { python, stamp } = pathsOf(name);
  return existsSync(stamp) && readFileSync(stamp, 'utf8') === contentsOf(name) ? python : null;
}

/** Returns the path of `uv`, which {@link installUv} installs. */
export function uvProgram(): string {
  return join(TRAINERS_HOME, 'uv', 'bin', 'uv');
}

/** Installs `uv`, unless it is installed. Throws an Error that names the command that failed. */
export function installUv(): void {
  if (existsSync(uvProgram())) return;
  mkdirSync(TRAINERS_HOME, { recursive: true });
  venvAt(join(TRAINERS_HOME, 'uv')).pip('install', '-q', UV);
}

/** Installs an environment, unless it is installed. Throws an Error that names the command that failed. */
export function installEnvironment(name: EnvironmentName): void {
  if (installedPython(name) !== null) return;
  installUv();
  const { folder, python, stamp } = pathsOf(name);
  rmSync(folder, { recursive: true, force: true });
  run(uvProgram(), ['venv', '-q', '-p', findPython(), folder]);
  for (const packages of ENVIRONMENTS[name]) run(uvProgram(), ['pip', 'install', '-q', '-p', python, ...packages]);
  writeFileSync(stamp, contentsOf(name));
}

function pathsOf(name: EnvironmentName): { readonly folder: string; readonly python: string; readonly stamp: string } {
  const folder = join(TRAINERS_HOME, name);
  return { folder, python: join(folder, 'bin', 'python'), stamp: join(folder, 'installed') };
}

function contentsOf(name: EnvironmentName): string {
  return JSON.stringify([PYTHON, ...ENVIRONMENTS[name]]);
}

/** Returns the program of Python 3.12: on the PATH, or of pyenv, whose program on the PATH does not run unless the version is selected. */
function findPython(): string {
  const versions = join(homedir(), '.pyenv', 'versions');
  const ofPyenv = existsSync(versions)
    ? readdirSync(versions).filter((version) => version.startsWith(`${PYTHON}.`))
    : [];
  const candidates = [`python${PYTHON}`, ...ofPyenv.map((version) => join(versions, version, 'bin', 'python3'))];
  const found = candidates.find((program) => spawnSync(program, ['--version']).status === 0);
  if (found === undefined) throw new Error(`Python ${PYTHON} is missing; install it, for instance with pyenv`);
  return found;
}
