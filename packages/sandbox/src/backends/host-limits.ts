import { release } from 'node:os';
import { MIB } from '@floe-rl/core';
import type { RuntimeBackend, RuntimeSpec } from '@floe-rl/core/schema';
import {
  type LimitField,
  type RuntimeCapabilities,
  type RuntimeProblem,
  SNAPSHOT_FILES,
  type SnapshotSupport,
} from '../api/runtime.ts';
import type { Controller } from '../processes/cgroup-hierarchy.ts';
import { CHECK_INTERVAL_MS } from '../spawn/process-watch.ts';

/** Size in bytes of the blocks in which `ulimit -f` of a POSIX shell takes the maximum file size (RLIMIT_FSIZE). */
const ULIMIT_BLOCK_BYTES = 512;
/**
 * RLIMIT_NPROC of a sandbox is its task limit plus this number. With this margin the checks detect that the limit is exceeded before a fork
 * fails.
 */
const SPARE_TASKS = 8;

/** Returns the maximum size of a file that a command may write, as `ulimit -f` of a POSIX shell takes it. */
export function fileBlocks({ max_file_mb }: Pick<RuntimeSpec, 'max_file_mb'>): string {
  return String(Math.ceil((max_file_mb * MIB) / ULIMIT_BLOCK_BYTES));
}

/**
 * Returns the RLIMIT_NPROC of a sandbox with this task limit. Returns `null` before Linux 5.14, where the limit would also count other
 * processes of the host. Since Linux 5.14 it counts the processes of each user namespace separately.
 */
export function processLimit(taskCount: number): string | null {
  return atLeastLinux(5, 14) ? String(taskCount + SPARE_TASKS) : null;
}

/** Whether this machine has at least this version of Linux. */
export function atLeastLinux(major: number, minor: number): boolean {
  const [a = 0, b = 0] = release().split('.').map(Number);
  return a > major || (a === major && b >= minor);
}

/** Returns what a back end with isolation offers. `byKernel` has the limits that the kernel enforces. */
export function capabilitiesOf(
  backend: RuntimeBackend,
  {
    isolation,
    byKernel,
    snapshots,
    privileges,
  }: Pick<RuntimeCapabilities, 'isolation' | 'privileges'> & {
    readonly byKernel: Readonly<Record<Exclude<LimitField, 'max_output_mb'>, boolean>>;
    readonly snapshots: Exclude<SnapshotSupport['method'], 'none'>;
  },
): RuntimeCapabilities {
  return {
    isolation,
    limits: {
      memory_mb: byKernel.memory_mb ? 'kernel' : 'checks',
      max_processes: byKernel.max_processes ? 'kernel' : 'checks',
      cpus: byKernel.cpus ? 'kernel' : 'none',
      storage_mb: byKernel.storage_mb ? 'kernel' : 'none',
      max_output_mb: 'floe',
    },
    networks: ['none', 'proxy', 'allowlist', 'host'],
    snapshots: { method: snapshots, files: SNAPSHOT_FILES[backend] },
    privileges,
  };
}

/** For each controller of the control groups, the effect on tasks when the controller is missing. */
const CONSEQUENCES: readonly (readonly [Controller, string])[] = [
  [
    'memory',
    `runtime.memory_mb is only checked every ${CHECK_INTERVAL_MS} ms, so a command that allocates quickly can use up the memory of the machine before it is killed`,
  ],
  ['cpu', 'runtime.cpus has no effect, and a session with many busy processes slows down all others'],
];

/** Returns which limits of a sandbox the kernel does not enforce, given the controllers that floe can use; `null` when it enforces all. */
export function unenforcedLimits(controllers: ReadonlySet<Controller>): RuntimeProblem | null {
  const missing = CONSEQUENCES.filter(([controller]) => !controllers.has(controller));
  if (missing.length === 0) return null;
  const names = missing.map(([controller]) => controller).join(' and ');
  return {
    problem: `no control groups with limits on ${names} can be created: ${missing.map(([, text]) => text).join('; ')}`,
    remedy:
      'as root, mount /sys/fs/cgroup writable with these controllers; otherwise run the gateway as a systemd service with Delegate=yes and DelegateSubgroup=gateway',
  };
}
