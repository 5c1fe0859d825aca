import type { RuntimeSpec } from '../../schema/index.ts';
import type { Cgroup, CgroupLimits } from '../processes/cgroup.ts';
import type { SpawnRequest } from '../spawn/spawner.ts';
import { PACK_SCRIPT } from '../transfer-script.ts';
import { HOST_PATH } from './host.ts';
import type { BubblewrapParts } from './runtime.ts';

const MB = 1024 * 1024;
/** RLIMIT_FSIZE counts in these in every shell. */
const ULIMIT_BLOCK_BYTES = 512;
/** bwrap's own two processes and the shell in front of them. */
const SANDBOX_TASKS = 4;
/** Threads of the relay. */
const RELAY_TASKS = 16;
/** The relay's own memory, which is not the command's. */
const RELAY_BYTES = 96 * MB;
/** Room above the limit, so that the watch sees the limit reached before a fork fails. */
const SPARE_TASKS = 8;
/**
 * Opens what bwrap reads its options from and reports to, sets the limits, and becomes nsenter and then bwrap.
 * Arguments: options file, status file, largest file in blocks, task limit or an empty string, directories of control
 * groups, the command.
 */
const EXEC_SCRIPT = `exec 9<"$1" 8>"$2" || exit 1
ulimit -c 0
ulimit -f "$3"
[ -z "$4" ] || ulimit -p "$4" 2>/dev/null || ulimit -u "$4"
for group in $5; do echo 0 >"$group/cgroup.procs" || exit 1; done
shift 5
exec "$@"`;

/** Opens the same two files and goes on as {@link PACK_SCRIPT}. */
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
  /** A host directory whose content is the command's input, as a tar archive. */
  readonly upload?: string | undefined;
};

export type ExecFiles = { readonly args: string; readonly status: string; readonly packing: string };

/** What one command is run with. */
export type CommandSetup = {
  readonly files: ExecFiles;
  /** What bwrap runs in the sandbox. */
  readonly argv: readonly string[];
  readonly cgroup: Cgroup | null;
};

/** The limits of a command's control group. The files of a session are memory too, and have a limit of their own. */
export function groupLimits(spec: RuntimeSpec, command: Command): CgroupLimits {
  const { memoryBytes, taskCount } = limitsOf(spec, command);
  return { memoryBytes: memoryBytes + spec.storage_mb * MB, taskCount, cpus: spec.cpus };
}

function limitsOf(spec: RuntimeSpec, command: Command): { memoryBytes: number; taskCount: number } {
  return {
    memoryBytes: spec.memory_mb * MB + (command.withProxy ? RELAY_BYTES : 0),
    taskCount: spec.max_processes + SANDBOX_TASKS + (command.withProxy ? RELAY_TASKS : 0),
  };
}

/** The process that enters the holder's namespaces and becomes bwrap there. */
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
          String(Math.ceil((request.spec.max_file_mb * MB) / ULIMIT_BLOCK_BYTES)),
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
