import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { debianImageMissing, makeDebianImage } from '../fixtures/debian-image.ts';
import { firstMissing } from '../services/container-engine.ts';
import { venvAt } from '../services/venv.ts';
import type { Surroundings } from './cheat.ts';
import { FORGED_LINE, HARBOR_TESTS } from './works.ts';

/** Packages of the image in which all agents work. */
const PACKAGES = [
  ...['base-files', 'bash', 'coreutils', 'dash', 'diffutils', 'findutils', 'grep', 'gzip', 'mawk', 'sed', 'tar'],
  ...['git', 'curl', 'python3', 'util-linux', 'e2fsprogs'],
];
const REQUIREMENTS = join(repositoryRoot(), 'verify', 'cheats', 'requirements.txt');
const CACHE = join(homedir(), '.cache', 'floe', 'cheats');

/** C program of a library that prints a forged report and ends the process when the command line of the process names pytest. */
const LIBRARY = `#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void forge(void) {
  char line[4096];
  int file = open("/proc/self/cmdline", O_RDONLY);
  ssize_t length = read(file, line, sizeof line);
  close(file);
  if (length <= 0 || !memmem(line, length, "pytest", 6)) return;
  if (write(1, "${FORGED_LINE}\\n", ${FORGED_LINE.length + 1}) > 0) _exit(0);
}
`;

/** Returns why the image cannot be made on this machine; `null` when it can. Installs pytest from PyPI into a folder of its own. */
export function imageMissing(): string | null {
  const program = firstMissing(['git', 'cc', 'python3']);
  if (program !== null) return `${program} is missing`;
  return debianImageMissing(PACKAGES) ?? installPytest();
}

/** Installs the packages of `requirements.txt`. Returns the reason when this is not possible. */
function installPytest(): string | null {
  const requirements = readFileSync(REQUIREMENTS, 'utf8');
  const stamp = join(CACHE, 'made-from');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === requirements) return null;
  const target = join(CACHE, 'packages');
  try {
    rmSync(target, { recursive: true, force: true });
    const options = ['-q', '--no-deps', '--require-hashes', '--target', target];
    venvAt(join(CACHE, 'venv')).pip('install', ...options, '-r', REQUIREMENTS);
  } catch (error) {
    return `pytest cannot be installed from PyPI: ${(error as Error).message}`;
  }
  writeFileSync(stamp, requirements);
  return null;
}

/** Creates the image, a directory with a root file system, in `dir`. Returns its path. */
export function makeImage(dir: string): string {
  makeDebianImage(dir, PACKAGES);
  const root = join(dir, 'root');
  cpSync(join(CACHE, 'packages'), join(root, 'usr', 'lib', 'python3', 'dist-packages'), { recursive: true });
  mkdirSync(join(root, 'work'));
  // Apptainer's user copies the image.
  chmodSync(join(root, 'root'), 0o755);
  return root;
}

/** Creates the files that the cheats use, in `dir`. */
export function makeSurroundings(dir: string): Surroundings {
  const testsDir = join(dir, 'tests');
  mkdirSync(testsDir);
  for (const [name, content] of Object.entries(HARBOR_TESTS)) writeFileSync(join(testsDir, name), content);
  const library = join(dir, 'forge.so');
  execFileSync('cc', ['-shared', '-fPIC', '-O', '-x', 'c', '-', '-o', library], { input: LIBRARY });
  for (const path of [dir, testsDir, library]) chmodSync(path, 0o755);
  return { testsDir, library };
}
