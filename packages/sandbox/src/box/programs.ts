import { accessSync, constants, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ToolError } from '../api/tools.ts';
import { SANDBOX_PATH } from '../workspace/environment.ts';

/** How a process for tools is started. */
export type ProcessSettings = {
  readonly program: string | null;
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  /** Environment variables that mark the processes of the interpreter, so that they can be found. */
  readonly marks: Readonly<Record<string, string>>;
  /** One of the marks, as `NAME=value`. */
  readonly marker: string;
  readonly prefix: readonly string[];
};

/** Returns the path of the first of the programs `names` that exists. Throws a {@link ToolError} (`unavailable`) when none does. */
export function findProgram(names: readonly string[], env: Readonly<Record<string, string>>, cwd: string): string {
  for (const name of names) {
    const folders = name.includes('/') ? [cwd] : (env.PATH ?? SANDBOX_PATH).split(':');
    for (const folder of folders) {
      const path = resolve(cwd, folder, name);
      if (isProgram(path)) return path;
    }
  }
  throw new ToolError('unavailable', `the sandbox has no program ${names.join(' or ')}`);
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}
