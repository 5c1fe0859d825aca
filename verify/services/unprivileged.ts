// Runs a program as a user without root privileges, for back ends and tests that depend on the user.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { repositoryRoot } from '../../tools/repository.ts';
import { findTool } from './tools.ts';

/** Id of the user without privileges. No system assigns this id, so the user owns no file. */
const USER = 61_843;
const DROP = ['--reuid', String(USER), '--regid', String(USER), '--clear-groups', '--'];
const PATH = '/usr/local/bin:/usr/bin:/bin';

/** Name of the environment variable with the path at which the user finds the program Apptainer. */
export const APPTAINER_VARIABLE = 'FLOE_TEST_APPTAINER';

/**
 * Shell script that makes directories of root visible for other users and replaces itself by a command. Arguments: the number of directories;
 * each directory and where it is mounted; the command.
 */
const MOUNT_SCRIPT = `set -e
count=$1; shift
while [ "$count" -gt 0 ]; do
  mount --rbind "$1" "$2"
  count=$((count - 1)); shift 2
done
exec "$@"`;

/** Returns why no program can be run as another user; `null` when one can. */
export function unprivilegedMissing(): string | null {
  if (process.getuid?.() !== 0) return 'this user is not root, so it cannot become another user';
  // A child process of Node reads the checkout, since `setpriv` itself still reads files with the privileges of root.
  const script =
    "require('node:child_process').execFileSync(process.execPath, ['node_modules/vitest/vitest.mjs', '--version'])";
  return spawnSync('setpriv', [...DROP, process.execPath, '-e', script]).status === 0
    ? null
    : 'a user without privilege cannot read this checkout or run this Node, or setpriv is missing: apt-get install util-linux';
}

/** A command of the user without privileges. */
export type UnprivilegedCommand = {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** Removes the user's home directory. */
  readonly remove: () => void;
};

/**
 * Returns the command that runs `argv` as the user without privileges, in a new home directory. `folders` are folders of root that the user
 * sees in this directory, under the given names.
 */
export function asUnprivilegedUser(
  argv: readonly string[],
  folders: Readonly<Record<string, string>> = {},
): UnprivilegedCommand {
  const home = mkdtempSync(join(tmpdir(), 'floe-user-'));
  chownSync(home, USER, USER);
  const apptainer = findTool('apptainer');
  const folder = join(home, 'apptainer');
  const mounts = [
    ...(apptainer === null ? [] : [[dirname(apptainer), folder]]),
    ...Object.entries(folders).map(([name, path]) => [path, join(home, name)]),
  ];
  for (const [, target] of mounts) mkdirSync(target as string, { recursive: true });
  const script = [MOUNT_SCRIPT, 'sh', String(mounts.length), ...mounts.flat()];
  const unshare = ['--mount', '--propagation', 'private', '--', '/bin/sh', '-c', ...script];
  return {
    program: 'unshare',
    args: [...unshare, 'setpriv', ...DROP, ...argv],
    env: {
      ...{ PATH, HOME: home, TMPDIR: home, NO_COLOR: '1' },
      ...(apptainer === null ? {} : { [APPTAINER_VARIABLE]: join(folder, basename(apptainer)) }),
    },
    remove: () => rmSync(home, { recursive: true, force: true }),
  };
}

/** How {@link runNode} runs a program. */
export type RunOptions = {
  /** Whether the program runs as the user without privileges. The default is this user. */
  readonly asUser?: boolean;
  /** Folders of root that the user without privileges sees in its home directory, by their names there. */
  readonly folders?: Readonly<Record<string, string>>;
  /** Returns further variables of the user without privileges, from the path of its home directory. */
  readonly env?: (home: string) => Readonly<Record<string, string>>;
};

/** Runs Node with the arguments `argv` in the root of this checkout, and resolves to what it printed on its standard output. */
export async function runNode(
  argv: readonly string[],
  { asUser = false, folders = {}, env = () => ({}) }: RunOptions = {},
): Promise<{ readonly status: number | null; readonly stdout: string }> {
  const command = asUser
    ? asUnprivilegedUser([process.execPath, ...argv], folders)
    : { program: process.execPath, args: argv, env: process.env, remove: () => {} };
  try {
    const child = spawn(command.program, command.args, {
      ...{ cwd: repositoryRoot(), env: { ...command.env, ...env(command.env.HOME ?? '') } },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(child, 'close');
    const stdout = await text(child.stdout);
    const [status] = await ended;
    return { status, stdout };
  } finally {
    command.remove();
  }
}
