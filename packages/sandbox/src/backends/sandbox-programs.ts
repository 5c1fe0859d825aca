import { execFile } from 'node:child_process';
import { chmod, copyFile, mkdir, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { type ProgramName, programPath } from '../programs.ts';
import { HOST_PATH } from '../workspace/environment.ts';

const run = promisify(execFile);

/** Programs of floe in a directory that is mounted in sandboxes. They run in any image, even in one without Node or with another C library. */
export type SandboxPrograms<Name extends string> = {
  /** Host directory of the programs. */
  readonly dir: string;
  /** Path of each program, by its name, relative to the directory. */
  readonly paths: Readonly<Record<Name, string>>;
  /** File name of the dynamic loader that starts Node in a sandbox; `null` when Node is statically linked. */
  readonly loader: string | null;
};

/** Copies programs, Node's libraries and Node's dynamic loader to the directory `dir`. `programs` gives each its name in the result. */
export async function copySandboxPrograms<Name extends string>(
  dir: string,
  programs: Readonly<Record<Name, ProgramName>>,
): Promise<SandboxPrograms<Name>> {
  await mkdir(dir, { recursive: true });
  await writeFile(join(dir, 'package.json'), '{"type":"module"}\n');
  const paths: Record<string, string> = {};
  for (const [name, program] of Object.entries<ProgramName>(programs)) {
    const path = programPath(program);
    await copyFile(path, join(dir, basename(path)));
    paths[name] = basename(path);
  }
  return { dir, paths: paths as Record<Name, string>, loader: await copyLibraries(dir) };
}

/** Where the programs of {@link SandboxPrograms} and the Node that runs them are in a sandbox. */
export type ProgramPlace = { readonly dir: string; readonly node: string };

/** Returns the command line of a program in a sandbox. `flags` are options of Node. */
export function programCommand<Name extends string>(
  { loader, paths }: SandboxPrograms<Name>,
  { dir, node }: ProgramPlace,
  name: Name,
  flags: readonly string[],
): string[] {
  const load = loader === null ? [] : [`${dir}/${loader}`, '--library-path', dir];
  return [...load, node, ...flags, `${dir}/${paths[name]}`];
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
