import { execFile } from 'node:child_process';
import { chmod, copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { promisify } from 'node:util';
import { entryPath } from '@floe-rl/core';
import { HOST_PATH } from '../workspace/environment.ts';

const run = promisify(execFile);

/** Matches the import of another file of floe in a compiled file. */
const RELATIVE_IMPORT = /^(?:import|export) (?:[^'"\n]* from )?'(\.[^'\n]+)';$/gm;

/** Programs of floe in a directory that is mounted in sandboxes. They run in any image, even in one without Node or with another C library. */
export type SandboxPrograms<Name extends string> = {
  /** Host directory of the programs. */
  readonly dir: string;
  /** Path of each program, by its name, relative to the directory. */
  readonly paths: Readonly<Record<Name, string>>;
  /** File name of the dynamic loader with which Node is started in a sandbox; `null` when Node is statically linked. */
  readonly loader: string | null;
};

/**
 * Copies programs, with the files that they import, Node's libraries and Node's dynamic loader, to the directory `dir`. `programs` are the
 * compiled files relative to `packages/sandbox/src/backends`, by name.
 */
export async function copySandboxPrograms<Name extends string>(
  dir: string,
  programs: Readonly<Record<Name, string>>,
): Promise<SandboxPrograms<Name>> {
  await mkdir(dir, { recursive: true });
  const root = entryPath(import.meta.url, '..');
  await writeFile(join(dir, 'package.json'), '{"type":"module"}\n');
  const paths: Record<Name, string> = { ...programs };
  for (const name of Object.keys(programs) as Name[]) {
    const compiled = entryPath(import.meta.url, `./${programs[name]}`);
    await copyModule(compiled, root, dir);
    paths[name] = relative(root, compiled);
  }
  return { dir, paths, loader: await copyLibraries(dir) };
}

/** Copies a compiled file and the files that it imports, with their paths below `root`. */
async function copyModule(file: string, root: string, dir: string): Promise<void> {
  const target = join(dir, relative(root, file));
  const text = await readFile(file, 'utf8');
  await mkdir(dirname(target), { recursive: true });
  await writeFile(target, text);
  for (const [, imported = ''] of text.matchAll(RELATIVE_IMPORT))
    await copyModule(join(dirname(file), imported), root, dir);
}

/** Copies the libraries and the dynamic loader of this Node to `dir`. Returns the loader's file name; `null` when Node is statically linked. */
async function copyLibraries(dir: string): Promise<string | null> {
  let loader: string | null = null;
  for (const path of await librariesOf(process.execPath)) {
    const name = basename(path);
    await copyFile(path, join(dir, name));
    await chmod(join(dir, name), 0o755);
    if (/^ld[-.]/.test(name) || name.startsWith('ld-')) loader = name;
  }
  return loader;
}

/** Copies a program of the host, and its libraries and dynamic loader, to the same paths in a root file system. */
export async function copyProgram(program: string, root: string): Promise<void> {
  for (const path of [program, ...(await librariesOf(program))]) {
    await mkdir(join(root, dirname(path)), { recursive: true });
    await copyFile(path, join(root, path));
  }
}

/** Returns the paths of the libraries and the dynamic loader of a program; an empty list when it is statically linked. */
async function librariesOf(program: string): Promise<string[]> {
  const listing = await run('ldd', [program], { env: { PATH: HOST_PATH, LC_ALL: 'C' } }).then(
    ({ stdout }) => stdout,
    () => '',
  );
  return [...listing.matchAll(/(?:^|\s)(\/\S+)\s+\(0x[0-9a-f]+\)/gm)].map((match) => match[1] ?? '');
}
