import { FloeError, onAbort } from '@floe-rl/core';
import type { StartRequest } from '../../api/runtime.ts';
import type { SpawnedProcess, Spawner } from '../../spawn/spawner.ts';
import { HOST_PATH } from '../../workspace/environment.ts';
import type { SandboxHost } from './host.ts';

/** Names of the directories in which a session can write, below `files` on its tmpfs. */
const SESSION_DIRS = ['work', 'home', 'tmp', 'vartmp', 'run', 'artifacts', 'logs', 'shm'];

/**
 * Maximum number of files that a session may create per MiB of its storage: one per 4 KiB block. Without this limit, a session could fill
 * the host's memory with empty files.
 */
const INODES_PER_MB = 256;

/** Maximum number of characters of a failed script's error output, taken from its end, that the error message quotes. */
const STDERR_CHARS = 500;
/** Maximum number of bytes that are kept of the output of the shell scripts below, which print only `ready` and errors. */
const SCRIPT_OUTPUT_BYTES = 16 * 1024;

/**
 * Shell script that sets up a session in a new mount namespace. It mounts a tmpfs of limited size on the session's directory and binds the
 * host paths that the sandbox needs into this tmpfs. It then binds the tmpfs to a mount point that every user can reach.
 *
 * Arguments: the session's directory, the mount point, the tmpfs options, the number of host paths, the host paths, and the command to run
 * next.
 */
const MOUNT_SCRIPT = `set -eu
umask 022
cd "$1"; base=$2; options=$3; count=$4; shift 4
mount -t tmpfs -o "$options" floe root
mkdir root/in
[ ! -d accounts ] || cp -R accounts root/in/accounts
index=0
while [ "$index" -lt "$count" ]; do
  if [ -d "$1" ]; then mkdir "root/in/$index"; else : >"root/in/$index"; fi
  mount --bind "$1" "root/in/$index"
  index=$((index + 1)); shift
done
mount --rbind root "$base"
cd /
exec "$@"`;

/**
 * Shell script of the holder process, which runs as the sandbox's user and keeps the session's namespaces alive. It reads a pipe that only
 * the spawn helper holds open, so it ends when the spawn helper closes the pipe or dies. Arguments: the mount point of the session's tmpfs;
 * the image's number among the bound host paths, or an empty string for a session without an image.
 */
const HOLD_SCRIPT = `set -eu
umask 022
cd "$1"
mkdir next files ${SESSION_DIRS.map((name) => `files/${name}`).join(' ')}
chmod 1777 files/tmp files/vartmp files/shm
if [ -n "$2" ]; then
  mkdir root root-upper root-work
  mount -t overlay -o "lowerdir=$1/in/$2,upperdir=$1/root-upper,workdir=$1/root-work,userxattr" floe root
fi
cd /
echo ready
exec cat`;

/**
 * Shell script of the holder process of a session that starts with the files of a frozen session. It runs as the sandbox's user in new
 * namespaces, which are copies of the frozen session's. It mounts a new tmpfs at `next` on the frozen session's tmpfs, and on it overlays with
 * the frozen files as lower layers.
 *
 * Arguments:
 * - the mount point of the frozen session;
 * - the tmpfs options;
 * - the lower layers of the session's files;
 * - the lower layers of the root file system, or an empty string for a session without an image;
 * - how the session gets the files: `overlay` or `copy`.
 */
const DERIVE_SCRIPT = `set -eu
umask 022
cd "$1"
mount -t tmpfs -o "$2" floe next
cd next
mkdir in next files files-upper files-work root root-upper root-work
overlay() { mount -t overlay -o "lowerdir=$3,upperdir=$2/$1-upper,workdir=$2/$1-work,userxattr" floe "$1"; }
if [ "$5" = overlay ]; then overlay files "$1/next" "$3"; else cp -a "$1/files/." files; fi
if [ -n "$4" ]; then overlay root "$1/next" "$4"; fi
cd /
echo ready
exec cat`;

/**
 * Shell script that mounts a host path below the mount point of a session. Arguments: the host path, the path at which it is mounted, and a
 * command prefix that runs commands as the owner of the session's tmpfs.
 */
const BIND_SCRIPT = `set -eu
source=$1; target=$2; shift 2
if [ -d "$source" ]; then "$@" mkdir -p "$target"; else "$@" touch "$target"; fi
exec mount --bind "$source" "$target"`;

/** Mount points of a session in its mount namespace, which the holder process keeps alive. */
export type HolderLayout = {
  /** Mount point of the session's tmpfs. */
  readonly base: string;
  /** Maps each host path that is mounted for the session to the path at which it is mounted in the session's mount namespace. */
  readonly bound: ReadonlyMap<string, string>;
  /** Directory with the files `passwd` and `group` of a session with an image. */
  readonly accounts: string;
  /** Number of frozen sessions on whose files the session's files are based. */
  readonly depth: number;
};

export type Holder = {
  readonly process: SpawnedProcess;
  readonly layout: HolderLayout;
};

export type HolderRequest = {
  readonly spawner: Spawner;
  /** Path of the session's directory on the host. */
  readonly dir: string;
  readonly host: SandboxHost;
  readonly request: StartRequest;
  /** Host directory that contains the image's root file system; `null` when the session has no image and bwrap creates the root. */
  readonly imagePath: string | null;
  /** User id on the host under which the sandbox's processes run. Ignored when the gateway runs without root privileges. */
  readonly uid: number;
};

/**
 * Starts the holder: the process that keeps a session's user and mount namespaces alive. When this rejects, with `runtime_failed` or with
 * the reason of `signal`, the process has ended.
 */
export async function startHolder(holderRequest: HolderRequest, signal: AbortSignal): Promise<Holder> {
  const { dir, host, request, imagePath, uid } = holderRequest;
  const sources = sourcesOf(holderRequest);
  const base = baseFor(dir, request);
  const privileged = host.mode === 'root';
  const options = [tmpfsOptions(request), ...(privileged ? [`uid=${uid},gid=${uid}`] : [])].join(',');
  const imageIndex = imagePath === null ? '' : String(sources.length - 1);
  const hold = ['/bin/sh', '-c', HOLD_SCRIPT, 'floe-holder', base, imageIndex];
  const mountScript = ['/bin/sh', '-c', MOUNT_SCRIPT, 'floe-holder', dir, base, options, String(sources.length)];
  const argv = privileged
    ? [
        'unshare',
        '--mount',
        '--propagation',
        'private',
        '--',
        ...mountScript,
        ...sources,
        ...asUser(uid),
        ...OWN_USER,
        ...hold,
      ]
    : [...OWN_USER, ...mountScript, ...sources, ...hold];
  const process = await spawnHolder(holderRequest, argv, signal);
  const bound = new Map(sources.map((source, index) => [source, `${base}/in/${index}`]));
  return { process, layout: { base, bound, accounts: `${base}/in/accounts`, depth: 0 } };
}

/**
 * Starts the holder of a session that starts with the files of the session of `frozen`, which must no longer change. The new session continues
 * when the frozen session ends. Rejects like {@link startHolder}.
 */
export async function deriveHolder(frozen: Holder, holderRequest: HolderRequest, signal: AbortSignal): Promise<Holder> {
  const { host, request, imagePath } = holderRequest;
  const frozenBase = frozen.layout.base;
  const base = `${frozenBase}/next`;
  const bound = new Map(frozen.layout.bound);
  const image = imagePath === null ? undefined : bound.get(imagePath);
  const [first = '', ...later] = bases(frozen.layout);
  const layers = (name: string, of: readonly string[], lowest: string): string =>
    [...of.map((each) => `${each}/${name}`), lowest].join(':');
  const files = layers('files-upper', later.toReversed(), `${first}/files`);
  const root = image === undefined ? '' : layers('root-upper', [first, ...later].toReversed(), image);
  const script = ['/bin/sh', '-c', DERIVE_SCRIPT, 'floe-holder', frozenBase, tmpfsOptions(request), files, root];
  const enter = ['nsenter', ...(host.mode === 'root' ? [] : ['--preserve-credentials']), '--user', '--mount'];
  const argv = [...enter, '--target', String(frozen.process.pid), '--', ...OWN_USER, ...script, host.snapshots];
  const process = await spawnHolder(holderRequest, argv, signal);
  const layout = { ...frozen.layout, base, bound, depth: frozen.layout.depth + 1 };
  try {
    const missing = sourcesOf(holderRequest).filter((source) => !bound.has(source));
    for (const [index, source] of missing.entries()) {
      const path = host.mode === 'user' ? source : `${base}/in/${index}`;
      if (host.mode === 'root') await bindInto({ process, layout }, holderRequest, source, path);
      bound.set(source, path);
    }
    signal.throwIfAborted();
    return { process, layout };
  } catch (error) {
    await endHolder(process);
    throw error;
  }
}

/**
 * Makes a host path available at `path` in the mount namespace of a session. A gateway with root privileges needs this, because the sandbox's
 * user may not enter the directories of the host.
 */
export async function bindInto(
  { process, layout }: Holder,
  { spawner, request, uid }: Pick<HolderRequest, 'spawner' | 'request' | 'uid'>,
  source: string,
  path: string,
): Promise<void> {
  const enter = ['nsenter', '--mount', '--target', String(process.pid), '--'];
  // The first tmpfs of a session is mounted by root of the machine. A later one accepts only users of the session's user namespace.
  const owner = layout.depth === 0 ? ['env'] : asUser(uid);
  const argv = [...enter, '/bin/sh', '-c', BIND_SCRIPT, 'sh', source, path, ...owner];
  const child = await spawner.spawn({ argv, env: { PATH: HOST_PATH }, maxOutputBytes: SCRIPT_OUTPUT_BYTES });
  const { exitCode, stderr } = await child.done;
  if (exitCode === 0) return;
  throw new FloeError('runtime_failed', `${source} cannot be mounted in sandbox ${request.name}: ${stderr.toString()}`);
}

/** Ends a holder process. The kernel removes the session's mounts and files unless other sessions are based on them. Never rejects. */
export async function endHolder(process: SpawnedProcess): Promise<void> {
  process.kill();
  await process.done.catch(() => {});
}

/** Command that creates user and mount namespaces in which the current user is root. */
const OWN_USER = ['unshare', '--user', '--map-root-user', '--mount', '--'];

/** Returns a command prefix. Root of the machine puts it before a command to run the command as the user `uid`. */
function asUser(uid: number): string[] {
  return ['setpriv', '--reuid', String(uid), '--regid', String(uid), '--clear-groups', '--'];
}

/** Spawns a holder process and waits until its session is set up. */
async function spawnHolder(
  { spawner, request }: HolderRequest,
  argv: readonly string[],
  signal: AbortSignal,
): Promise<SpawnedProcess> {
  const env = { PATH: HOST_PATH };
  const child = await spawner.spawn({ argv, env, stdin: 'hold', maxOutputBytes: SCRIPT_OUTPUT_BYTES });
  const release = onAbort(signal, () => child.kill());
  try {
    if ((await child.firstLine) === 'ready') {
      signal.throwIfAborted();
      return child;
    }
    const { stderr } = await child.done;
    signal.throwIfAborted();
    const why = stderr.toString().trim().slice(-STDERR_CHARS);
    throw new FloeError('runtime_failed', `the sandbox ${request.name} could not be set up: ${why}`, { stderr: why });
  } catch (error) {
    await endHolder(child);
    throw error;
  } finally {
    release();
  }
}

/** Returns the host paths that are mounted for a session. The image is the last one. */
function sourcesOf({ host, request, imagePath }: HolderRequest): string[] {
  const sources = [host.shareDir, process.execPath, ...request.readOnlyMounts.map((mount) => mount.hostPath)];
  return imagePath === null ? sources : [...sources, imagePath];
}

function tmpfsOptions({ spec }: StartRequest): string {
  return `size=${spec.storage_mb}m,nr_inodes=${spec.storage_mb * INODES_PER_MB},mode=0755,nosuid,nodev`;
}

/** Returns the mount points of the tmpfs of a session and of the frozen sessions on which it is based, oldest first. */
export function bases({ base, depth }: HolderLayout): string[] {
  const first = base.slice(0, base.length - '/next'.length * depth);
  return Array.from({ length: depth + 1 }, (_, index) => first + '/next'.repeat(index));
}

/**
 * Returns the mount point for the session's files: `/mnt` or `/srv`, which exist on every system. The mount hides the previous content of
 * the mount point, so the session's directory and proxy socket must not be below it.
 */
function baseFor(dir: string, request: StartRequest): string {
  const used = [dir, request.proxy?.socketPath ?? ''];
  return used.some((path) => path.startsWith('/mnt/')) ? '/srv' : '/mnt';
}
