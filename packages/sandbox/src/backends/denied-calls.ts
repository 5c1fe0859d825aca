/** Processor architectures for which floe has a system call filter, as the kernel names them. */
export type Architecture = 'x86_64' | 'aarch64';

/** Error of a denied call. */
export type DeniedErrno = 'ENOSYS' | 'EPERM' | 'EAFNOSUPPORT';

/**
 * Condition on the low 32 bits of a call's first argument. With `anyBit`, the call is denied when the argument has at least one of these
 * bits; with `noneOf`, when it equals none of these values.
 */
export type ArgumentCondition = { readonly anyBit: number } | { readonly noneOf: readonly number[] };

export type DeniedCall = {
  readonly name: string;
  readonly numbers: Readonly<Record<Architecture, number>>;
  readonly errno: DeniedErrno;
  /** When the call is denied; `null` when it is always denied. */
  readonly when: ArgumentCondition | null;
};

/** Calls that are denied for the same reason. The documentation has one table row for each group. */
export type DeniedGroup = {
  readonly calls: readonly DeniedCall[];
  /** The condition under which these calls are denied, as Markdown text for the documentation; `null` when they are always denied. */
  readonly condition: string | null;
  /** Why the calls are denied, in Markdown. */
  readonly reason: string;
};

type Numbers = readonly [name: string, x86_64: number, aarch64: number];

function group(
  calls: readonly Numbers[],
  errno: DeniedErrno,
  reason: string,
  { when, condition }: { readonly when: ArgumentCondition | null; readonly condition: string | null } = {
    when: null,
    condition: null,
  },
): DeniedGroup {
  return {
    calls: calls.map(([name, x86_64, aarch64]) => ({ name, numbers: { x86_64, aarch64 }, errno, when })),
    condition,
    reason,
  };
}

const CLONE_NEWTIME = 0x0000_0080;
/**
 * Flags that create a namespace: CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID and CLONE_NEWNET.
 * CLONE_NEWTIME is not among them, since `clone` uses its bit for the number of a signal.
 */
const CLONE_NAMESPACES = 0x7e02_0000;

/** Socket families that a sandbox may use: AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. */
const SOCKET_FAMILIES = [1, 2, 10, 16];

/**
 * System calls that no command in a bubblewrap sandbox may use. A call for which programs have a fallback fails with ENOSYS, as on a kernel
 * that lacks it. A call that an unprivileged user may not use anyway fails with EPERM, which programs expect.
 */
export const DENIED_GROUPS: readonly DeniedGroup[] = [
  group(
    [
      ['add_key', 248, 217],
      ['request_key', 249, 218],
      ['keyctl', 250, 219],
    ],
    'ENOSYS',
    'Processes inherit the session keyring of the process that started the gateway. Through it an agent could read secrets of the host, and leave keys for other sandboxes.',
  ),
  group(
    [
      ['io_uring_setup', 425, 425],
      ['io_uring_enter', 426, 426],
      ['io_uring_register', 427, 427],
    ],
    'ENOSYS',
    'A large part of the kernel with a history of vulnerabilities. Its operations, for instance opening a socket, are not system calls, so this filter would not see them.',
  ),
  group(
    [['bpf', 321, 280]],
    'EPERM',
    'Programs in the kernel; their verifier had many vulnerabilities. Some hosts allow them to unprivileged users.',
  ),
  group(
    [['userfaultfd', 323, 282]],
    'ENOSYS',
    'Lets a process stop the kernel in the middle of a memory access, which makes race conditions in the kernel exploitable.',
  ),
  group(
    [['perf_event_open', 298, 241]],
    'EPERM',
    'Measures the processor and the kernel, which other sandboxes share, and had many vulnerabilities.',
  ),
  group(
    [['syslog', 103, 116]],
    'EPERM',
    'The log of the kernel describes the host and the processes of other sandboxes.',
  ),
  group(
    [
      ['kexec_load', 246, 104],
      ['kexec_file_load', 320, 294],
    ],
    'EPERM',
    'Replaces the running kernel.',
  ),
  group(
    [
      ['init_module', 175, 105],
      ['finit_module', 313, 273],
      ['delete_module', 176, 106],
    ],
    'EPERM',
    'Changes the running kernel.',
  ),
  group(
    [['open_by_handle_at', 304, 265]],
    'EPERM',
    'Opens files by number instead of by path, and so reaches files that are not mounted in the sandbox.',
  ),
  group(
    [
      ['mount', 165, 40],
      ['umount2', 166, 39],
      ['pivot_root', 155, 41],
      ['open_tree', 428, 428],
      ['open_tree_attr', 467, 467],
      ['move_mount', 429, 429],
      ['fsopen', 430, 430],
      ['fsconfig', 431, 431],
      ['fsmount', 432, 432],
      ['fspick', 433, 433],
      ['mount_setattr', 442, 442],
    ],
    'EPERM',
    'The mounts of the sandbox are its boundary, and the code of file systems trusts what it mounts.',
  ),
  group([['setns', 308, 268]], 'EPERM', 'Enters other namespaces.'),
  group(
    [['unshare', 272, 97]],
    'EPERM',
    'In a new user namespace a process has capabilities, and with them reaches much more of the kernel.',
    {
      when: { anyBit: CLONE_NAMESPACES | CLONE_NEWTIME },
      condition: 'with a flag for a new namespace',
    },
  ),
  group([['clone', 56, 220]], 'EPERM', 'As `unshare`. Threads and ordinary child processes are not affected.', {
    when: { anyBit: CLONE_NAMESPACES },
    condition: 'with a flag for a new namespace',
  }),
  group(
    [['clone3', 435, 435]],
    'ENOSYS',
    'Its flags are in memory, which a filter cannot read. The C libraries then use `clone`.',
  ),
  group(
    [
      ['socket', 41, 198],
      ['socketpair', 53, 199],
    ],
    'EAFNOSUPPORT',
    'Network namespaces do not confine `AF_VSOCK`: on a virtual machine it reaches services of the host. Most other families are rarely used kernel code, which the kernel loads on demand.',
    {
      when: { noneOf: SOCKET_FAMILIES },
      condition: 'for families other than `AF_UNIX`, `AF_INET`, `AF_INET6` and `AF_NETLINK`',
    },
  ),
];

export const DENIED_CALLS: readonly DeniedCall[] = DENIED_GROUPS.flatMap(({ calls }) => calls);
