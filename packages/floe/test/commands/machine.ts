import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { MissingPart } from '../../../../test/skip.ts';
import { repositoryRoot } from '../../../../tools/repository.ts';

export const CLI = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');

/** Id of the user without privileges as which commands are run. No system assigns this id, and the user owns no file. */
const USER = 61_843;
const DROP = ['setpriv', '--reuid', String(USER), '--regid', String(USER), '--clear-groups', '--'];
/** Time after which a command that should have failed is killed. Its exit code is then `null`. */
const LIMIT_MS = 60_000;

export type Exit = { readonly code: number | null; readonly output: string };
type Env = Readonly<Record<string, string>>;

/** Runs a command with only the variables of `env` and PATH. Returns its exit code and the text of stdout and stderr. */
export async function run(argv: readonly string[], env: Env = {}, cwd: string = tmpdir()): Promise<Exit> {
  const [program = '', ...args] = argv;
  const child = spawn(program, args, {
    cwd,
    env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', NO_COLOR: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
    killSignal: 'SIGKILL',
  });
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  return { code, output: stdout + stderr };
}

/** Returns the command that runs `argv` as a user without privileges. */
export function asUser(argv: readonly string[]): string[] {
  return [...DROP, ...argv];
}

/** Returns the command that runs `argv` in a mount namespace of its own, after the shell script `mounts` has changed the mounts. */
export function withMounts(mounts: string, argv: readonly string[]): string[] {
  return ['unshare', '--mount', '--propagation', 'private', 'sh', '-ec', `${mounts}\nexec "$@"`, 'sh', ...argv];
}

/** Creates a directory that is owned by the unprivileged user as which {@link asUser} runs commands. */
export function ownedByUser(path: string): string {
  mkdirSync(path);
  chownSync(path, USER, USER);
  return path;
}

/** Creates a directory that only root may write to. */
export function readOnly(path: string): string {
  mkdirSync(path);
  chmodSync(path, 0o555);
  return path;
}

/** Creates the directory `path` with the files that `npm start` reads first, as in a new clone in which no packages are installed. */
export function freshClone(path: string): string {
  mkdirSync(join(path, 'tools'), { recursive: true });
  const floe = join('packages', 'floe');
  const sandbox = join('packages', 'sandbox');
  mkdirSync(join(path, floe, 'src'), { recursive: true });
  mkdirSync(join(path, sandbox), { recursive: true });
  for (const file of [
    ...['package.json', 'package-lock.json', 'tsconfig.base.json', 'tools/run.js', 'tools/install-lock.js'],
    ...[join(floe, 'package.json'), join(floe, 'tsconfig.json'), join(sandbox, 'bundle.js')],
  ]) {
    cpSync(join(repositoryRoot(), file), join(path, file));
  }
  mkdirSync(join(path, 'dashboard'));
  cpSync(join(repositoryRoot(), 'dashboard', 'vite.config.ts'), join(path, 'dashboard', 'vite.config.ts'));
  return path;
}

/** Why commands cannot be run as another user; `null` when they can. */
export function noOtherUser(): MissingPart {
  if (process.getuid?.() !== 0) return 'another user can be chosen by root only: run the tests as root';
  const reads = spawnSync('setpriv', [...DROP.slice(1), process.execPath, CLI, '--version']);
  return reads.status === 0
    ? null
    : 'a user without privilege cannot read this checkout or run this Node, or setpriv is missing: apt-get install -y util-linux';
}

/** Why this user cannot change mounts; `null` when it can. */
export function noMounts(): MissingPart {
  const works = succeeds((dir) => withMounts(`mount -t tmpfs test ${dir}`, ['true']));
  return works ? null : 'this user may not mount: run the tests as root, outside a container';
}

/** Why this machine cannot hide installed programs from a command, which takes an overlay mount; `null` when it can. */
export function noHiding(): MissingPart {
  const works = succeeds((dir) => withMounts(hide('git', dir), ['sh', '-c', '! [ -e /usr/bin/git ]']));
  return works ? null : 'this user may not mount an overlay: run the tests as root';
}

/** Returns a shell script that hides a program in /usr/bin. `dir` is an empty directory. */
export function hide(name: string, dir: string): string {
  return `mount -t tmpfs hidden ${dir}
mkdir ${dir}/upper ${dir}/work
mknod ${dir}/upper/${name} c 0 0
mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=${dir}/upper,workdir=${dir}/work /usr/bin`;
}

/** Returns a shell script that mounts a disk at `dir`. Its size is `kb` KiB, and `freeKb` KiB are free. */
export function smallDisk(dir: string, kb: number, freeKb: number): string {
  return `mount -t tmpfs -o size=${kb}k small ${dir}
mkdir ${dir}/lost+found
head -c ${(kb - freeKb) * 1024} /dev/zero >${dir}/lost+found/filler || [ ${freeKb} = 0 ]`;
}

/** Returns a shell script that makes `dir` read-only, also for root. */
export function readOnlyMount(dir: string): string {
  return `mount --bind ${dir} ${dir}
mount -o remount,ro,bind ${dir}`;
}

/**
 * Returns a command that runs `argv` as a user who has created all the user namespaces that the limit of 1 allows. The limit is set in a new
 * user namespace, so that the rest of the machine is not affected.
 */
export function withoutUserNamespaces(dir: string, argv: readonly string[]): string[] {
  const inside = `read -r mapped <${dir}/mapped
echo 1 >/proc/sys/user/max_user_namespaces
exec ${DROP.join(' ')} sh -c 'unshare --user sh -c "echo held >${dir}/held; exec sleep 60" & read -r held <${dir}/held
"$@"; code=$?; kill $!; exit $code' sh "$@"`;
  const outside = `mkfifo -m 666 ${dir}/mapped ${dir}/held
unshare --user --keep-caps sh -ec '${inside.replaceAll("'", `'\\''`)}' sh "$@" &
until echo '0 0 100000' >/proc/$!/uid_map; do :; done
echo '0 0 100000' >/proc/$!/gid_map
echo mapped >${dir}/mapped
wait $!`;
  return ['sh', '-c', outside, 'sh', ...argv];
}

/** Why {@link withoutUserNamespaces} does not work here; `null` when it does. */
export function noNamespaceLimit(): MissingPart {
  const works = succeeds((dir) => withoutUserNamespaces(dir, ['sh', '-c', '! unshare --user true']));
  return works ? null : 'this user may not set limits in a new user namespace: run the tests as root';
}

/** Runs a command that uses an empty directory, and returns whether it succeeded. */
function succeeds(commandFor: (dir: string) => readonly string[]): boolean {
  const dir = mkdtempSync(join(tmpdir(), 'floe-machine-'));
  // The command may run as another user.
  chmodSync(dir, 0o755);
  try {
    const [program = '', ...args] = commandFor(dir);
    return spawnSync(program, args, { timeout: LIMIT_MS }).status === 0;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
