import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { RuntimeProblem } from '../../api/runtime.ts';
import { installCommand } from '../../workspace/environment.ts';
import { architectureOf } from './syscall-filter.ts';

/** Maps a program to the package that contains it. Programs that have the same name as their package are left out. */
const PACKAGES: Readonly<Record<string, string>> = {
  bwrap: 'bubblewrap',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  mount: 'util-linux',
  setpriv: 'util-linux',
  find: 'findutils',
};

/** Value to which a limit of namespaces is raised. Distributions allow about this number on small machines. */
const DEFAULT_LIMIT = 15_000;

/**
 * Kernel settings that can forbid user namespaces. Each entry consists of the path below /proc/sys, the value that forbids user namespaces,
 * and a value that allows them.
 */
const SWITCHES = [
  ['kernel/unprivileged_userns_clone', 0, 1],
  ['kernel/apparmor_restrict_unprivileged_userns', 1, 0],
  ['user/max_user_namespaces', 0, DEFAULT_LIMIT],
] as const;

/** Error text for a host with a processor architecture for which floe has no system call filter. */
export const NO_FILTER = `floe has no system call filter for the processor architecture ${process.arch}, only for x64 and arm64`;

/**
 * File that lists the actions that a filter may take for a system call. It exists where the kernel supports such filters.
 */
const FILTER_ACTIONS = '/proc/sys/kernel/seccomp/actions_avail';

/** Kinds of namespaces that a sandbox needs. The kernel limits the number of each kind for each user. */
const NAMESPACES = ['user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup'];
/** Matches the messages of `unshare` and `bwrap` when a limit of namespaces is reached, which the kernel reports as ENOSPC. */
const NO_NAMESPACES = /unshare failed: No space left on device|namespace.*\(ENOSPC\)/;
/** Matches the messages of Node and `tar` when the disk is full. */
const DISK_FULL = /ENOSPC: no space left|No space left on device/;

/**
 * Determines why bubblewrap does not work on this host. Returns the problem and a command or hint that solves it. `missing` is a program
 * that is not installed, or `null`. `failure` is the error message of a sandbox that could not be started, or `null`.
 */
export async function diagnose({
  missing,
  failure,
}: {
  readonly missing: string | null;
  readonly failure: string | null;
}): Promise<RuntimeProblem> {
  if (process.platform !== 'linux') {
    return { problem: 'bubblewrap needs Linux', remedy: 'run the gateway on Linux, or use `runtime.backend: local`' };
  }
  if (missing !== null) {
    return { problem: `${missing} is not installed`, remedy: await installCommand(PACKAGES[missing] ?? missing) };
  }
  const otherMachine = 'run the gateway on another machine, or use `runtime.backend: local`';
  if (architectureOf(process.arch) === null) return { problem: NO_FILTER, remedy: otherMachine };
  if (!(await isReadable(FILTER_ACTIONS))) {
    const problem = 'the kernel does not support system call filters: it was built without CONFIG_SECCOMP_FILTER';
    return { problem, remedy: otherMachine };
  }
  for (const [name, forbids, allows] of SWITCHES) {
    const value = await readFile(join('/proc/sys', name), 'utf8').catch(() => null);
    if (value !== null && Number(value) === forbids) {
      const key = name.replace('/', '.');
      return { problem: `user namespaces are blocked: ${key} is ${forbids}`, remedy: `sysctl -w ${key}=${allows}` };
    }
  }
  const text = failure?.trim().replaceAll(/\s*\n\s*/g, ' ') ?? 'unknown reason';
  if (NO_NAMESPACES.test(text)) return namespaceLimit();
  const problem = `a sandbox cannot be started: ${text}`;
  if (DISK_FULL.test(text)) {
    const remedy =
      'free space on that disk, or choose another with --state-dir (of `floe doctor` and `npm start`: TMPDIR)';
    return { problem, remedy };
  }
  return {
    problem,
    remedy:
      'in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined',
  };
}

/** Returns the problem that this user has reached a limit on namespaces. Its text names the lowest of the kernel's limits on namespaces. */
async function namespaceLimit(): Promise<RuntimeProblem> {
  const limits = await Promise.all(
    NAMESPACES.map(async (kind) => {
      const key = `user.max_${kind}_namespaces`;
      const value = await readFile(join('/proc/sys', key.replace('.', '/')), 'utf8').catch(() => 'NaN');
      return { key, value: Number(value) };
    }),
  );
  const [lowest] = limits.filter(({ value }) => !Number.isNaN(value)).sort((a, b) => a.value - b.value);
  const { key, value } = lowest ?? { key: 'user.max_user_namespaces', value: 0 };
  return {
    problem: `no namespaces are left for this user: a limit of the kernel is reached (ENOSPC), and the lowest is ${key}=${value}`,
    remedy: `sysctl -w ${key}=${Math.max(DEFAULT_LIMIT, 2 * value)}, or end programs that hold namespaces (\`lsns\` lists them)`,
  };
}

function isReadable(path: string): Promise<boolean> {
  return access(path, constants.R_OK).then(
    () => true,
    () => false,
  );
}
