import { readlinkSync } from 'node:fs';
import { FloeError, MIB } from '@floe-rl/core';
import type { RuntimeSpec } from '@floe-rl/core/schema';
import { SANDBOX_UID } from '../../api/files.ts';
import type { ExecRequest, StartRequest } from '../../api/runtime.ts';
import { BOX_BYTES, BOX_NODE_FLAGS, BOX_TASKS, boxServerArgument } from '../../box/tool-server.ts';
import type { Cgroup } from '../../processes/cgroup.ts';
import type { CgroupLimits } from '../../processes/cgroup-hierarchy.ts';
import type { SpawnRequest } from '../../spawn/spawner.ts';
import { EGRESS_PORT, HOST_PATH, PROXY_PORT, sandboxPaths } from '../../workspace/environment.ts';
import { PACK_SCRIPT } from '../../workspace/transfer.ts';
import { fileBlocks, processLimit } from '../host-limits.ts';
import { type ProgramPlace, programCommand } from '../sandbox-programs.ts';
import { type HostParts, INIT } from '../sandbox-runtime.ts';
import type { Holder, HolderLayout } from './holder.ts';
import type { SandboxHost } from './host.ts';

/** Path in the sandbox of the directory with all files of the proxy relay, which forwards the agent's connections to the session's proxy. */
const RELAY_DIR = '/.floe';
/** Paths in the sandbox of the proxy relay, of floe's other programs, and of the Node that runs them. */
const PLACE: ProgramPlace = { dir: `${RELAY_DIR}/relay`, node: `${RELAY_DIR}/node` };
/** Path in the sandbox of the Unix socket on which the gateway waits for a box server. */
const BOX_SOCKET = `${RELAY_DIR}/box.sock`;
/** A proxy on the host that commands reach through the relay: `proxy` is the proxy of the model, and `egress` the proxy for other hosts. */
export type RelayedProxy = 'proxy' | 'egress';
const RELAY_PORTS: Readonly<Record<RelayedProxy, number>> = { proxy: PROXY_PORT, egress: EGRESS_PORT };
/**
 * Prefix of the command's environment variables on their way through the proxy relay. The relay removes the prefix when it starts the
 * command, so that variables such as NODE_OPTIONS do not affect the relay itself.
 */
const RELAY_ENV_PREFIX = '_FLOE_RELAYED_';
/** Node options of the proxy relay. They keep the relay's heap small, because every session runs a relay and a relay only copies bytes. */
const RELAY_NODE_FLAGS = ['--max-semi-space-size=1', '--max-old-space-size=64', '--no-warnings'];

/** Directories of the system, which a task may not use as its working directory. */
const RESERVED = ['/', '/bin', '/dev', '/etc', '/lib', '/lib64', '/proc', '/sbin', '/sys', '/usr', RELAY_DIR];

export type BubblewrapParts = HostParts & {
  readonly host: SandboxHost;
  /** The holder process of the sandbox's first namespaces. */
  readonly holder: Holder;
  /** Directory of the image on the host; `null` without an image. */
  readonly imagePath: string | null;
  /** User id on the host under which the processes of the sandbox run. */
  readonly uid: number;
  /** Environment variables of the image. */
  readonly imageEnv: Readonly<Record<string, string>>;
};

/** Throws `schema_violation` when `spec.workdir` cannot be the working directory of a sandbox. */
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
  const at = (hostPath: string): string => layout.bound.get(hostPath) ?? hostPath;
  const own = (name: string): string => `${layout.base}/files/${name}`;
  const args = [
    ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try'],
    ...(spec.network === 'host' ? [] : ['--unshare-net']),
    ...['--die-with-parent', '--as-pid-1', '--new-session', '--clearenv', '--cap-drop', 'ALL', '--disable-userns'],
    ...['--uid', String(SANDBOX_UID), '--gid', String(SANDBOX_UID), '--hostname', 'floe'],
    ...FILE_OPTIONS,
  ];
  const share = at(host.shareDir);
  if (spec.image === null) {
    args.push(...host.programArgs, '--ro-bind', `${share}/etc`, '/etc');
    for (const [source, target] of host.etcBinds) args.push('--ro-bind', source, target);
  } else {
    args.push('--bind', `${layout.base}/root`, '/');
    for (const name of ['passwd', 'group']) args.push('--ro-bind', `${layout.accounts}/${name}`, `/etc/${name}`);
    args.push('--ro-bind', `${share}/etc/hosts`, '/etc/hosts');
  }
  if (spec.network === 'host') args.push('--ro-bind-try', '/etc/resolv.conf', '/etc/resolv.conf');
  args.push('--proc', '/proc');
  for (const path of host.readOnlyProcPaths) args.push('--ro-bind', path, path);
  for (const path of host.hiddenProcFiles) args.push('--ro-bind', `${share}/empty`, path);
  args.push('--dev', '/dev', '--bind', own('shm'), '/dev/shm', '--remount-ro', '/dev');
  args.push('--bind', own('tmp'), '/tmp', '--bind', own('vartmp'), '/var/tmp', '--bind', own('run'), '/run');
  const { home, artifacts, logs } = sandboxPaths(spec);
  args.push('--bind', own('home'), home, '--bind', own('artifacts'), artifacts, '--bind', own('logs'), logs);
  if (spec.image === null) args.push('--bind', own('work'), spec.workdir);
  for (const mount of request.readOnlyMounts) args.push('--ro-bind', at(mount.hostPath), mount.sandboxPath);
  args.push('--ro-bind', `${share}/relay`, PLACE.dir, '--ro-bind', at(process.execPath), PLACE.node);
  return args;
}

/** Returns the bwrap options of one command, and the arguments that follow `--` on bwrap's command line. */
export function commandArgs(
  host: SandboxHost,
  command: {
    readonly argv: readonly string[];
    readonly cwd: string;
    readonly env: Readonly<Record<string, string>>;
    /** Paths of the proxies' sockets in the session's mount namespace. When there are none, the command runs without the proxy relay. */
    readonly relaySockets: Readonly<Partial<Record<RelayedProxy, string>>>;
    /** Path of the box server's socket in the session's mount namespace, for the command that is a box server. */
    readonly boxSocket?: string | undefined;
    /** Whether bwrap creates the root file system; false when the root file system is an image. */
    readonly plainRoot: boolean;
  },
): { readonly options: string[]; readonly argv: string[] } {
  const { boxSocket } = command;
  const names = Object.keys(command.relaySockets) as RelayedProxy[];
  // A box server forwards connections itself.
  const isRelayed = names.length > 0 && boxSocket === undefined;
  const options = names.flatMap((name) => ['--ro-bind', command.relaySockets[name] ?? '', relaySocketOf(name)]);
  if (boxSocket !== undefined) options.push('--ro-bind', boxSocket, BOX_SOCKET);
  // The root that bwrap creates is a tmpfs without a size limit. It is made read-only, so that only the session's size-limited directories
  // can grow.
  if (command.plainRoot) options.push('--remount-ro', '/');
  for (const [name, value] of Object.entries(command.env)) {
    options.push('--setenv', isRelayed ? RELAY_ENV_PREFIX + name : name, value);
  }
  options.push('--chdir', command.cwd);
  // Without INIT, bwrap's own first process would outlive bwrap, and the host's first process would have to reap it.
  if (!isRelayed) return { options, argv: [...INIT, ...command.argv] };
  const forwards = names.map((name) => `${RELAY_PORTS[name]}=${relaySocketOf(name)}`).join(',');
  const how = [forwards, RELAY_ENV_PREFIX];
  return {
    options,
    argv: [...INIT, ...programCommand(host.programs, PLACE, 'relay', RELAY_NODE_FLAGS), ...how, ...command.argv],
  };
}

/** Returns the command line of a box server that forwards connections to `proxies`. */
export function boxArgv(host: SandboxHost, proxies: readonly RelayedProxy[]): string[] {
  const server = boxServerArgument({
    socketPath: BOX_SOCKET,
    forwards: proxies.map((name) => ({ port: RELAY_PORTS[name], socketPath: relaySocketOf(name) })),
    gatewayPidNamespace: readlinkSync('/proc/self/ns/pid'),
  });
  return [...programCommand(host.programs, PLACE, 'box', BOX_NODE_FLAGS), server];
}

/** Returns the command line of the MCP server. */
export function mcpArgv({ programs }: SandboxHost): string[] {
  return programCommand(programs, PLACE, 'mcp', BOX_NODE_FLAGS);
}

/** Returns the path in the sandbox of a proxy's Unix socket. */
function relaySocketOf(name: RelayedProxy): string {
  return `${RELAY_DIR}/${name}.sock`;
}

/** Number of tasks (processes and threads) that bwrap and the shells that start it need, in addition to the tasks of the command. */
const SANDBOX_TASKS = 4;
/**
 * Maximum number of threads of the proxy relay. They count as tasks of the sandbox, so the sandbox's task limit is raised by this number.
 */
const RELAY_TASKS = 16;
/** Memory in bytes for the proxy relay. The memory limit of a command that runs with the relay is raised by this amount. */
const RELAY_BYTES = 96 * MIB;
/**
 * Line of a shell script that opens bwrap's files: its options, its status report and the system call filter. The paths are the first three
 * arguments of the script. bwrap closes the three descriptors before it starts the command.
 */
const OPEN_FILES = 'exec 9<"$1" 8>"$2" 7<"$3" || exit 1';
/** Options that name two of the descriptors that {@link OPEN_FILES} opens: 8 for bwrap's status report and 7 for the system call filter. */
const FILE_OPTIONS = ['--json-status-fd', '8', '--seccomp', '7'];

/**
 * Shell script that starts bwrap. It opens bwrap's files, sets the limits, and replaces itself by nsenter, which runs bwrap. Arguments: the
 * three files, maximum file size of {@link fileBlocks}, maximum number of tasks or an empty string, directories of
 * control groups separated by spaces, the command.
 */
const EXEC_SCRIPT = `${OPEN_FILES}
ulimit -c 0
ulimit -f "$4"
[ -z "$5" ] || ulimit -p "$5" 2>/dev/null || ulimit -u "$5"
for group in $6; do echo 0 >"$group/cgroup.procs" || exit 1; done
shift 6
exec "$@"`;

/**
 * Shell script that uploads a directory. It opens bwrap's files like {@link EXEC_SCRIPT}, then packs the directory and pipes the archive to
 * bwrap like {@link PACK_SCRIPT}.
 */
const UPLOAD_SCRIPT = `${OPEN_FILES}
shift 3
${PACK_SCRIPT}`;

export type Command = {
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  readonly stdin?: Buffer | string | undefined;
  /** The proxies that the command reaches. */
  readonly proxies: readonly RelayedProxy[];
  readonly maxOutputBytes: number;
  readonly isService?: ExecRequest['isService'];
  /** Path of the box server's socket in the session's mount namespace, for the command that is a box server. */
  readonly boxSocket?: string | undefined;
  /** Host directory to upload. Its content is packed as a tar archive and passed to the command's stdin. */
  readonly upload?: string | undefined;
};

type CommandSetup = {
  /**
   * Host paths of three files: bwrap's options (`args`), bwrap's status report (`status`), and the exit code of packing an upload, written
   * only when packing failed (`packing`).
   */
  readonly files: { readonly args: string; readonly status: string; readonly packing: string };
  /** Arguments of the process that bwrap starts in the sandbox. */
  readonly argv: readonly string[];
  /** Control group of the command; `null` when none can be created. */
  readonly cgroup: Cgroup | null;
};

/** Returns the limits of a command's control group. The memory limit includes the session's files, because they are on a tmpfs. */
export function groupLimits(spec: RuntimeSpec, command: Command): CgroupLimits {
  const { memoryBytes, taskCount } = limitsOf(spec, command);
  return { memoryBytes: memoryBytes + spec.storage_mb * MIB, taskCount, cpus: spec.cpus };
}

function limitsOf(spec: RuntimeSpec, command: Command): { memoryBytes: number; taskCount: number } {
  const isBox = command.boxSocket !== undefined;
  const isRelayed = command.proxies.length > 0 && !isBox;
  return {
    memoryBytes: spec.memory_mb * MIB + (isRelayed ? RELAY_BYTES : 0) + (isBox ? BOX_BYTES : 0),
    taskCount: spec.max_processes + SANDBOX_TASKS + (isRelayed ? RELAY_TASKS : 0) + (isBox ? BOX_TASKS : 0),
  };
}

/**
 * Returns the request to spawn a process that enters the session's namespaces, which the holder process keeps alive, and there replaces
 * itself by bwrap.
 */
export function spawnRequest(
  { host, request }: Pick<BubblewrapParts, 'host' | 'request'>,
  holder: Holder,
  command: Command,
  setup: CommandSetup,
): SpawnRequest {
  const { files, argv, cgroup } = setup;
  const limits = limitsOf(request.spec, command);
  const inside = [
    ...['nsenter', ...(host.mode === 'root' ? [] : ['--preserve-credentials'])],
    ...['--user', '--mount', '--target', String(holder.process.pid), '--'],
    ...['bwrap', '--args', '9', '--', ...argv],
  ];
  const directories = cgroup?.directories ?? [];
  const opened = [files.args, files.status, host.filterFile];
  const script =
    command.upload === undefined
      ? [
          ...['-c', EXEC_SCRIPT, 'floe-exec', ...opened],
          fileBlocks(request.spec),
          processLimit(limits.taskCount) ?? '',
          directories.join(' '),
        ]
      : ['-c', UPLOAD_SCRIPT, 'floe-upload', ...opened, command.upload, files.packing];
  return {
    argv: ['/bin/sh', ...script, ...inside],
    env: { PATH: HOST_PATH },
    stdin: command.stdin,
    maxOutputBytes: command.maxOutputBytes,
    limits: { ...limits, cgroups: directories },
    onOutput: command.isService === true ? undefined : request.onActivity,
  };
}
