// Installs the packages of trainers from PyPI into one virtual environment for each, because their requirements exclude each other.
import { type Installs, UvEnvironments } from '../services/uv.ts';

/** The environments are in `$FLOE_TRAINERS_HOME`, else in a folder of the user's cache directory. */
const environments = new UvEnvironments('trainers', 'FLOE_TRAINERS_HOME');

/** PyPI has no CPU build of torch. This CUDA build runs on CPUs too. */
const TORCH = 'torch==2.13.0';

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
  // Packages that the sources of trainers import, for the option `--source`. No package registry has these trainers. NeMo-RL refuses newer
  // transformers.
  sources: [
    [
      ...[TORCH, 'transformers==5.10.4', 'ray==2.57.0', 'tensordict==0.15.3', 'msgspec==0.22.0'],
      ...['prime-pydantic-config==0.4.3', 'tinker==0.38.0', 'pillow', 'chz', 'termcolor'],
    ],
    ['--no-deps', 'tinker-cookbook==0.6.1', 'tml-renderers==0.2.1'],
  ],
} as const satisfies Record<string, Installs>;

export type EnvironmentName = keyof typeof ENVIRONMENTS;

/** The command that installs all environments. */
export const INSTALL_COMMAND = 'npm run verify -- trainers --install';

/** Returns the Python program of an environment; `null` when the environment is not installed with the versions that this file names. */
export function installedPython(name: EnvironmentName): string | null {
  return environments.installedPython(name, ENVIRONMENTS[name]);
}

/** Installs an environment, unless it is installed. Throws an Error that names the command that failed. */
export function installEnvironment(name: EnvironmentName): void {
  environments.install(name, ENVIRONMENTS[name]);
}

/** Installs `uv`, unless it is installed, and returns its path. */
export function installUv(): string {
  environments.installUv();
  return environments.uv;
}

/** Returns the path of `uv`, which {@link installUv} installs. */
export function uvProgram(): string {
  return environments.uv;
}
