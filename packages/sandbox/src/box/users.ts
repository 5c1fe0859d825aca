import { readFile } from 'node:fs/promises';
import { SANDBOX_PATH } from '../workspace/environment.ts';
import { isProtectedFrom, type UserIds } from './ownership.ts';

/** Variables with lists of paths from which every command, or every shell, loads programs or libraries. */
const LOADED_PATHS: readonly string[] = ['PATH', 'LD_LIBRARY_PATH', 'LD_PRELOAD', 'LD_AUDIT', 'BASH_ENV', 'ENV'];

/** User and group of commands and files in a sandbox. */
export type SandboxUser = UserIds & {
  /** Name of the user; `null` for a number that the image does not name. */
  readonly name: string | null;
};

/**
 * Finds a user in the files `passwd` and `group` of `directory`. `wanted` has the form of an image's user: `name` or `uid`, and optionally
 * `:group` or `:gid`. As with a container engine, a number needs no entry. Resolves with `null` when there is no such user or group.
 */
export async function findUser(wanted: string, directory = '/etc'): Promise<SandboxUser | null> {
  const [user = '', group = ''] = wanted.split(':', 2);
  const entry = await entryOf(`${directory}/passwd`, user);
  const uid = numberIn(entry?.[2] ?? user);
  const gid =
    group === '' ? numberIn(entry?.[3] ?? '0') : numberIn((await entryOf(`${directory}/group`, group))?.[2] ?? group);
  return uid === null || gid === null ? null : { uid, gid, name: entry?.[0] ?? null };
}

/**
 * Returns variables for commands of root, which replace the user's variables of the same names. They contain root's home directory and names.
 * They also contain the lists of paths in `variables` without the paths that the user can change, so that root runs no program of the user.
 */
export async function rootVariables(
  user: UserIds,
  variables: Readonly<Record<string, string>>,
): Promise<Record<string, string>> {
  const home = (await entryOf('/etc/passwd', '0'))?.[5];
  const result: Record<string, string> = { HOME: home || '/root', USER: 'root', LOGNAME: 'root' };
  for (const name of LOADED_PATHS) {
    const value = variables[name];
    if (value === undefined) continue;
    const paths = value.split(/[:\s]/);
    const areProtected = await Promise.all(paths.map((path) => isProtectedFrom(user, path).catch(() => false)));
    result[name] = paths.filter((_, index) => areProtected[index]).join(':');
  }
  // A shell would search an empty PATH in the working directory.
  return { ...result, PATH: result.PATH || SANDBOX_PATH };
}

/** Returns the fields of the line in a database (`passwd` or `group`) that has the name or number `wanted`; `null` when there is none. */
async function entryOf(path: string, wanted: string): Promise<string[] | null> {
  const text = await readFile(path, 'utf8').catch(() => '');
  const entries = text.split('\n').map((line) => line.split(':'));
  return entries.find(([name]) => name === wanted) ?? entries.find((fields) => fields[2] === wanted) ?? null;
}

function numberIn(text: string): number | null {
  return /^\d{1,10}$/.test(text) ? Number(text) : null;
}
