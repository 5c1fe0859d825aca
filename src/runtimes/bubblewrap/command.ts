import { MIB } from '../../core/bytes.ts';
import { FloeError } from '../../core/errors.ts';
import { SANDBOX_UID } from '../../core/sandbox.ts';
import type { RuntimeSpec } from '../../schema/index.ts';
import { HOST_PATH } from '../environment.ts';
import type { Cgroup, CgroupLimits } from '../processes/cgroup.ts';
import type { StartRequest } from '../runtime.ts';
import type { SandboxParts } from '../sandbox-runtime.ts';
import type { SpawnRequest } from '../spawn/spawner.ts';
import { PACK_SCRIPT } from '../transfer.ts';
import type { Holder, HolderLayout } from './holder.ts';
import { AGENT_HOME, type SandboxHost } from './host.ts';

/** Port of the sandbox's loopback interface on which the proxy relay listens. It is far from the ports that programs commonly use. */
export const RELAY_PORT = 24417;
/** Paths in the sandbox of the proxy relay's directory, of its program and libraries, of Node and of the proxy's socket. */
const RELAY_DIR = '/.floe';
const RELAY_LIB = `${RELAY_DIR}/relay`;
const RELAY_NODE = `${RELAY_DIR}/node`;
const RELAY_SOCKET = `${RELAY_DIR}/proxy.sock`;
/** Prefix of the command's environment variables while they pass through the proxy relay, which removes it; see proxy-relay.ts. */
const RELAY_ENV_PREFIX = '_FLOE_RELAYED_';
/** Node options of the proxy relay. They keep its heap small, because every session runs a relay, which only copies bytes. */
const RELAY_NODE_FLAGS = ['--max-semi-space-size=1', '--max-old-space-size=64', '--no-warnings'];

/**
 * Command of the first process of a sandbox. This process reaps orphaned processes, and when it ends, the kernel ends all other processes
 * of the sandbox. It replaces bwrap's own first process, which would outlive bwrap and be left to the host's first process to reap.
 * Without the `exit`, some shells would replace themselves by the command instead of waiting for it.
 */
const INIT = ['/bin/sh', '-c', '"$@"; exit "$?"', 'floe-init'];

/** Directories that a task may not use as the working directory of a sandbox. */
const RESERVED = ['/', '/bin', '/dev', '/etc', '/lib', '/lib64', '/proc', '/sbin', '/sys', '/usr', RELAY_DIR];

/** Paths in the sandbox of the directories for artifacts and for logs, which are on the session's tmpfs. */
export const ARTIFACTS_DIR = '/artifacts';
export const LOGS_DIR = '/logs';

export type BubblewrapParts = SandboxParts & {
  readonly host: SandboxHost;
  readonly holder: Holder;
  /** User id on the host that the processes of the sandbox have. */
  readonly uid: number;
};

/** Throws `schema_violation` when the spec's path cannot be the working directory of a sandbox. */
export function checkWorkdir(spec: RuntimeSpec): void {
  const { workdir } = spec;
  const problem = !workdir.startsWith('/')
    ? 'must be an absolute path'
    : workdir.split('/').some((part) => part === '..' || part === '.')
      ? 'must not contain "." or ".." parts'
      : RESERVED.includes(workdir.replace(/\/+$/, '') || '/') ||
          (spec.image === null && RESERVED.some((dir) => dir !== '/' && workdir.startsWith(`${dir}/`)))
        ? 'is a directory of the system'
        : null;
  if (problem !== null) {
    throw new FloeError('schema_violation', `runtime.workdir: ${workdir} ${problem}`, { path: 'runtime.workdir' });
  }
}

/** Returns the bwrap options that are the same for every command of a session. */
export function sandboxArgs(host: SandboxHost, request: StartRequest, layout: HolderLayout): string[] {
  const { spec } = request;
  const at = (hostPath: string): string => `${layout.base}/in/${layout.bound.get(hostPath)}`;
  const own = (name: string): string => `${layout.base}/${name}`;
  const args = [
    ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try'],
    ...(spec.network === 'none' ? ['--unshare-net'] : []),
    ...['--die-with-parent', '--as-pid-1', '--new-session', '--clearenv', '--cap-drop', 'ALL', '--disable-userns'],
    ...['--uid', String(SANDBOX_UID), '--gid', String(SANDBOX_UID), '--hostname', 'floe'],
  ];
  const share = at(host.shareDir);
  if (spec.image === null) {
    args.push(...host.programArgs, '--ro-bind', `${share}/etc`, '/etc');
    for (const [source, target] of host.etcBinds) args.push('--ro-bind', source, target);
  } else {
    args.push('--bind', own('root'), '/');
    args.push(
      '--ro-bind',
      own('in/accounts/passwd'),
      '/etc/passwd',
      '--ro-bind',
      own('in/accounts/group'),
      '/etc/group',
    );
    args.push('--ro-bind', `${share}/etc/hosts`, '/etc/hosts');
  }
  if (spec.network === 'host') args.push('--ro-bind-try', '/etc/resolv.conf', '/etc/resolv.conf');
  args.push('--proc', '/proc', '--dev', '/dev', '--bind', own('shm'), '/dev/shm', '--remount-ro', '/dev');
  args.push('--bind', own('tmp'), '/tmp', '--bind', own('vartmp'), '/var/tmp', '--bind', own('run'), '/run');
  args.push(
    '--bind',
    own('home'),
    AGENT_HOME,
    '--bind',
    own('artifacts'),
    ARTIFACTS_DIR,
    '--bind',
    own('logs'),
    LOGS_DIR,
  );
  if (spec.image === null) args.push('--bind', own('work'), spec.workdir);
  for (const mount of request.readOnlyMounts) args.push('--ro-bind', at(mount.hostPath), mount.sandboxPath);
  args.push('--ro-bind', `${share}/relay`, RELAY_LIB, '--ro-bind', at(process.execPath), RELAY_NODE);
  return args;
}

/** Returns the bwrap options of one command, and the arguments that follow `--` on bwrap's command line. */
export function commandArgs(
  host: SandboxHost,
  command: {
    readonly argv: readonly string[];
    readonly cwd: string;
    readonly env: Readonly<Record<string, string>>;
    /** Path of the proxy's socket in the session's mount namespace; `null` for a command that runs without the proxy relay. */
    readonly relaySocket: string | null;
    /** Whether bwrap creates the root file system; false when the root file system is an image. */
    readonly plainRoot: boolean;
  },
): { readonly options: string[]; readonly argv: string[] } {
  const { relaySocket } = command;
  const options: string[] = [];
  if (relaySocket !== null) options.push('--ro-bind', relaySocket, RELAY_SOCKET);
  // The root that bwrap creates is a tmpfs without a size limit. It is made read-only, so that only the session's size-limited directories
  // can grow.
  if (command.plainRoot) options.push('--remount-ro', '/');
  for (const [name, value] of Object.entries(command.env)) {
    options.push('--setenv', relaySocket === null ? name : RELAY_ENV_PREFIX + name, value);
  }
  options.push('--chdir', command.cwd);
  if (relaySocket === null) return { options, argv: [...INIT, ...command.argv] };
  const loader = host.loader === null ? [] : [`${RELAY_LIB}/${host.loader}`, '--library-path', RELAY_LIB];
  const relay = [RELAY_NODE, ...RELAY_NODE_FLAGS, `${RELAY_LIB}/proxy-relay.mjs`];
  const how = [String(RELAY_PORT), RELAY_SOCKET, RELAY_ENV_PREFIX];
  return { options, argv: [...INIT, ...loader, ...relay, ...how, ...command.argv] };
}

/** Unit in which every shell's `ulimit -f` counts the largest file size (RLIMIT_FSIZE), in bytes. */
const ULIMIT_BLOCK_BYTES = 512;
/** Number of tasks that bwrap and the shells that start it need in addition to the command. */
const SANDBOX_TASKS = 4;
/** Maximum number of threads of the proxy relay, which count as tasks of the sandbox. */
const RELAY_TASKS = 16;
/** Memory in bytes that a command with the proxy relay may use in addition to the limit of its task. */
const RELAY_BYTES = 96 * MIB;
/** Number of tasks that RLIMIT_NPROC allows above the limit, so that ProcessWatch notices an exceeded limit before a fork fails. */
const SPARE_TASKS = 8;
/**
 * Shell script that starts bwrap. Opens the file from which bwrap reads its options and the file to which it reports its status, sets the
 * limits, and replaces itself by nsenter, which runs bwrap. Arguments: options file, status file, largest file in blocks, most tasks or an
 * empty string, directories of control groups separated by spaces, the command.
 */
const EXEC_SCRIPT = `exec 9<"$1" 8>"$2" || exit 1
ulimit -c 0
ulimit -f "$3"
[ -z "$4" ] || ulimit -p "$4" 2>/dev/null || ulimit -u "$4"
for group in $5; do echo 0 >"$group/cgroup.procs" || exit 1; done
shift 5
exec "$@"`;

/** Shell script that starts bwrap for an upload. Opens the same two files as {@link EXEC_SCRIPT} and continues as {@link PACK_SCRIPT}. */
const UPLOAD_SCRIPT = `exec 9<"$1" 8>"$2" || exit 1
shift 2
${PACK_SCRIPT}`;

export type Command = {
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  readonly stdin?: Buffer | string | undefined;
  readonly withProxy: boolean;
  readonly maxOutputBytes: number;
  /** A host directory whose content is packed as a tar archive and passed to the command's stdin. */
  readonly upload?: string | undefined;
};

type CommandSetup = {
  /** Host paths of three files: bwrap's options, bwrap's status, and the exit code of a packing that failed. */
  readonly files: { readonly args: string; readonly status: string; readonly packing: string };
  /** Arguments of the process that bwrap starts in the sandbox. */
  readonly argv: readonly string[];
  /** Control group of the command; `null` when none can be created. */
  readonly cgroup: Cgroup | null;
};

/** Returns the limits of a command's control group. The memory limit includes the session's files, which are on a tmpfs. */
export function groupLimits(spec: RuntimeSpec, command: Command): CgroupLimits {
  const { memoryBytes, taskCount } = limitsOf(spec, command);
  return { memoryBytes: memoryBytes + spec.storage_mb * MIB, taskCount, cpus: spec.cpus };
}

function limitsOf(spec: RuntimeSpec, command: Command): { memoryBytes: number; taskCount: number } {
  return {
    memoryBytes: spec.memory_mb * MIB + (command.withProxy ? RELAY_BYTES : 0),
    taskCount: spec.max_processes + SANDBOX_TASKS + (command.withProxy ? RELAY_TASKS : 0),
  };
}

/**
 * Returns the request for a process that enters the session's namespaces, which the holder process keeps alive, and replaces itself by
 * bwrap there.
 */
export function spawnRequest(parts: BubblewrapParts, command: Command, setup: CommandSetup): SpawnRequest {
  const { host, holder, request } = parts;
  const { files, argv, cgroup } = setup;
  const limits = limitsOf(request.spec, command);
  const inside = [
    ...['nsenter', ...(host.mode === 'root' ? [] : ['--preserve-credentials'])],
    ...['--user', '--mount', '--target', String(holder.process.pid), '--'],
    ...['bwrap', '--args', '9', '--', ...argv],
  ];
  const directories = cgroup?.directories ?? [];
  const script =
    command.upload === undefined
      ? [
          ...['-c', EXEC_SCRIPT, 'floe-exec', files.args, files.status],
          String(Math.ceil((request.spec.max_file_mb * MIB) / ULIMIT_BLOCK_BYTES)),
          host.countsProcessesPerNamespace ? String(limits.taskCount + SPARE_TASKS) : '',
          directories.join(' '),
        ]
      : ['-c', UPLOAD_SCRIPT, 'floe-upload', files.args, files.status, command.upload, files.packing];
  return {
    argv: ['/bin/sh', ...script, ...inside],
    env: { PATH: HOST_PATH },
    stdin: command.stdin,
    maxOutputBytes: command.maxOutputBytes,
    limits: { ...limits, cgroups: directories },
    onOutput: request.onActivity,
  };
}
