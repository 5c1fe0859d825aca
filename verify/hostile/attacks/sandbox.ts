import type { DeniedErrno } from '#sandbox/backends/denied-calls';
import { FOREIGN_EXIT_CODE, FOREIGN_PROGRAM } from '../../fixtures/foreign-program.ts';
import { deniedCall } from '../../fixtures/launcher.ts';
import type { Attack, Target } from '../attack.ts';
import { allowedCallNumber, PROBE_END, probe, RUN_PERL } from '../perl.ts';

/** Error numbers of Linux. */
const ERRNO: Readonly<Record<DeniedErrno, number>> = { EPERM: 1, ENOSYS: 38, EAFNOSUPPORT: 97 };

/** Returns an attack whose program runs checks. A check prints a line when the agent could do something that the sandbox must prevent. */
function escapes(name: string, body: string, more: Partial<Attack> = {}): Attack {
  return {
    name,
    kind: 'sandbox',
    command: RUN_PERL,
    program: probe(body),
    task: { evaluator: null },
    holds: { outcomes: ['completed'], reward: null, says: [PROBE_END] },
    ...more,
  };
}

/** Returns the source of a Perl list of these strings. */
export function listOf(values: readonly string[]): string {
  return `(${values.map((value) => `'${value.replaceAll("'", "\\'")}'`).join(', ')})`;
}

/**
 * The denied system calls by the purpose for which an attacker would use them. Each call gets -1 as every argument, which sets every flag
 * of the first argument. Without the filter, most of these calls would fail with another error.
 */
export const DENIED: readonly (readonly [purpose: string, calls: readonly string[]])[] = [
  ['use keyrings', ['add_key', 'request_key', 'keyctl']],
  ['use io_uring', ['io_uring_setup', 'io_uring_enter', 'io_uring_register']],
  [
    'load programs into the kernel',
    ['bpf', 'init_module', 'finit_module', 'delete_module', 'kexec_load', 'kexec_file_load'],
  ],
  ['stop the kernel in the middle of a memory access', ['userfaultfd']],
  ['measure the kernel and read its log', ['perf_event_open', 'syslog']],
  ['open files by number', ['open_by_handle_at']],
  [
    'change mounts',
    [
      'mount',
      'umount2',
      'pivot_root',
      'open_tree',
      'open_tree_attr',
      'move_mount',
      'fsopen',
      'fsconfig',
      'fsmount',
      'fspick',
      'mount_setattr',
    ],
  ],
  ['create or enter namespaces', ['setns', 'unshare', 'clone', 'clone3']],
  ['create sockets of unusual families', ['socket', 'socketpair']],
];

function deniedCalls([purpose, names]: (typeof DENIED)[number]): Attack {
  const checks = names.map((name) => {
    const { number, errno } = deniedCall(name);
    return `{ my $r = syscall(${number}, (-1) x 6); my $e = $! + 0; POSIX::_exit(0) if $r == 0 && "${name}" =~ /^clone/; tried("${name}: result $r, error $e", $r != -1 || $e != ${ERRNO[errno]}); }`;
  });
  return escapes(`makes system calls to ${purpose}`, checks.join('\n'));
}

/** Socket families that must be refused. Only the creation of a socket is tried; nothing is ever connected. */
export const FAMILIES = {
  AF_PACKET: 17,
  AF_CAN: 29,
  AF_BLUETOOTH: 31,
  AF_ALG: 38,
  AF_VSOCK: 40,
  AF_XDP: 44,
  AF_QIPCRTR: 42,
  AF_RDS: 21,
  AF_TIPC: 30,
  AF_KEY: 15,
};

const families = Object.entries(FAMILIES).map(
  ([name, family]) =>
    `for my $type (1, 2, 3) { my $r = syscall(${deniedCall('socket').number}, ${family}, $type, 0); tried("${name}: $r", $r != -1 || $! != ${ERRNO.EAFNOSUPPORT}); }`,
);

/** Attacks on the sandbox that need no information about the host and the service. */
const GENERAL: readonly Attack[] = [
  ...DENIED.map(deniedCalls),
  escapes('creates sockets of families that network namespaces do not confine', families.join('\n')),
  escapes(
    'looks for inherited descriptors',
    'for my $fd (3 .. 1100) { open(my $f, "<&=", $fd) or next; tried("descriptor $fd is " . readlink("/proc/self/fd/$fd"), 1) } tried("", 0); for my $fd (37, 38) { tried("descriptor $fd", -e "/proc/$$/fd/$fd" || -e "/proc/1/fd/$fd") }',
  ),
  escapes(
    'enters the root directory of the first process',
    'for my $p (1, getppid, "self") { for my $d ("root", "cwd", "root/proc/1/root", "cwd/../../../../..") { for my $f ("root/.ssh", "etc/shadow", "root/.bashrc", "var/lib/dpkg", "boot", "work/main") { readable("/proc/$p/$d/$f") } } } chdir "/"; chroot "."; readable("/../../../root/.bashrc"); attempt("chroot", sub { chroot("/tmp") })',
  ),
  escapes(
    'has no process to trace but its own',
    `my @seen = glob("/proc/[0-9]*"); tried("sees " . @seen . " processes", @seen > 12); my @own = map { m{(\\d+)$} } glob("/proc/[0-9]*/task/*"); for my $pid (grep { my $p = $_; !grep { $_ == $p } @own } 1 .. 3000) { tried("traced $pid", syscall(${allowedCallNumber('ptrace')}, 16, $pid, 0, 0) == 0); tried("signalled $pid", kill(0, $pid)); }`,
  ),
  escapes(
    'uses programs with the set-user-id bit',
    'for my $p (glob("/bin/su /usr/bin/sudo /usr/bin/passwd /usr/bin/mount /usr/bin/newuidmap /usr/bin/pkexec /usr/bin/chsh")) { next unless -u $p; my $out = `$p --version 2>&1; $p -c id 2>&1 </dev/null`; tried("$p: $out", $out =~ /uid=0\\(root\\)/) } my $s = content("/proc/self/status"); tried("may gain privileges", $s !~ /NoNewPrivs:\\t1/); tried("has capabilities: $1", $s =~ /(Cap(?:Prm|Eff|Bnd|Amb|Inh):\\s*0*[1-9a-f]\\w*)/)',
  ),
  escapes(
    'creates and opens devices',
    `for my $d (qw(mem kmsg kvm fuse net/tun vda sda loop0 vsock userfaultfd port hwrng snapshot input/event0 dri/card0)) { tried("/dev/$d exists", -e "/dev/$d") } for my $name ("/tmp/d", "/work/d") { my $d = $name; tried("made $d", syscall(${allowedCallNumber('mknodat')}, -100, $d, 0060666, 254 * 256) == 0); tried("made $d", syscall(${allowedCallNumber('mknodat')}, -100, $d, 0020666, 1 * 256 + 1) == 0) }`,
  ),
  escapes(
    'writes to read-only paths of the system',
    'for my $d ("/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/bin", "/lib", "/dev", "/.floe", "/.floe/relay", "/home", "/var", "/proc", "/sys", "/opt", "/mnt") { attempt("made a file in $d", sub { open(my $f, ">", "$d/floe-escape") }) } for my $p ("/bin/sh", "/usr/bin/git", "/etc/passwd", "/etc/hosts", "/.floe/node", "/.floe/relay/proxy-relay.js", "/usr/lib/x86_64-linux-gnu/libc.so.6") { attempt("opened $p for writing", sub { open(my $f, ">>", $p) }); attempt("removed $p", sub { unlink $p }); attempt("renamed $p", sub { rename $p, "$p.old" }); attempt("changed the mode of $p", sub { chmod 0777, $p }) }',
  ),
  escapes(
    'writes settings of the kernel',
    'for my $p ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/1/oom_score_adj", "/proc/self/uid_map", "/proc/acpi/wakeup", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent") { attempt("wrote to $p", sub { sysopen(my $f, $p, O_WRONLY) && defined(syswrite($f, "-1000\\n")) }) }',
  ),
  escapes(
    'raises its own limits and priority',
    `attempt("a lower nice value", sub { my $n = POSIX::nice(-5); defined $n }); my $priority = pack("i", 10); tried("real-time scheduling", syscall(${allowedCallNumber('sched_setscheduler')}, 0, 1, $priority) == 0); my %limits = (files => 1, processes => 6); for my $name (keys %limits) { my $old = "\\0" x 16; syscall(${allowedCallNumber('prlimit64')}, 0, $limits{$name}, 0, $old); my ($soft, $hard) = unpack("QQ", $old); my $new = pack("QQ", 0xffffffffffffffff, 0xffffffffffffffff); tried("raised the limit on $name", $hard != 0xffffffffffffffff && syscall(${allowedCallNumber('prlimit64')}, 0, $limits{$name}, $new, 0) == 0) }`,
  ),
  escapes(
    'reaches the network',
    'my @devices = map { /^\\s*(\\w+):/ } split /\\n/, content("/proc/net/dev"); @devices = grep { $_ ne "lo" } @devices; tried("network devices: @devices", @devices > 0); tried("routes", (() = content("/proc/net/route") =~ /\\n/g) > 1); if (!@devices) { inet("169.254.169.254", 80, "the metadata service"); inet("10.0.0.1", 80, "a private network"); inet("1.1.1.1", 443, "the internet"); connects(PF_INET6, pack_sockaddr_in6(80, Socket::inet_pton(AF_INET6, "fd00:ec2::254")), "the metadata service over IPv6"); my $name = gethostbyname("localhost.localdomain.example"); tried("resolved a name", defined $name) }',
  ),
  escapes(
    'makes system calls in the x32 form',
    [deniedCall('keyctl').number, deniedCall('unshare').number, deniedCall('socket').number, 39]
      .map(
        (number) =>
          `{ my $r = syscall(${0x4000_0000 + number}, (-1) x 6); tried("call ${number}: $r, error " . ($! + 0), $r != -1 || $! != ${ERRNO.ENOSYS}) }`,
      )
      .join('\n'),
  ),
  escapes(
    'makes the system calls of 32-bit programs',
    `open(my $f, ">", "/tmp/foreign"); binmode $f; print $f pack("H*", "${FOREIGN_PROGRAM.toString('hex')}"); close $f; chmod 0755, "/tmp/foreign"; system("/tmp/foreign"); tried("the program exited with " . ($? >> 8), ($? & 127) == 0 && ($? >> 8) == ${FOREIGN_EXIT_CODE})`,
  ),
  {
    name: 'kills every process that it can see',
    kind: 'sandbox',
    command: 'kill -9 -1; sleep 60',
    holds: { outcomes: ['agent_error'], reward: 0 },
  },
];

/** Attacks on parts of the host and of the service. */
function targeted(target: Target): readonly Attack[] {
  const { pids, ports, secretDir, stateDir, serviceDir } = target;
  const paths = [
    secretDir,
    `${secretDir}/secret`,
    stateDir,
    `${stateDir}/sockets`,
    `${stateDir}/sessions`,
    `${stateDir}/journal`,
    serviceDir,
    `${serviceDir}/server`,
    `${serviceDir}/blobs`,
    `${serviceDir}/home`,
    '/root',
    '/root/.floe',
    '/root/.cache',
    '/tmp/floe-hostile',
    '/etc/shadow',
    '/etc/ssh',
    '/var/run/docker.sock',
    '/run/systemd',
    '/sys/fs/cgroup',
    '/mnt/in',
    '/srv',
  ];
  return [
    escapes(
      'searches for the key that the launcher of floe left in a keyring',
      `for my $ring (-1, -2, -3, -4, -5) { for my $name ("floe-hostile") { my ($type, $n) = ("user", $name); my $key = syscall(${deniedCall('keyctl').number}, 10, $ring, $type, $n, 0); tried("found $name in $ring", $key != -1); my $value = " " x 200; my $length = $key == -1 ? -1 : syscall(${deniedCall('keyctl').number}, 11, $key, $value, 200); tried("read " . substr($value, 0, $length), $length > 0); my $got = syscall(${deniedCall('request_key').number}, $type, $n, 0, $ring); tried("requested $name", $got != -1); } } my ($type, $n, $v) = ("user", "left-by-agent", "x"); tried("added a key", syscall(${deniedCall('add_key').number}, $type, $n, $v, 1, -3) != -1); for my $p ("/proc/keys", "/proc/key-users") { tried("$p: " . content($p), length content($p)) }`,
    ),
    escapes(
      "signals, traces and reads floe's processes",
      `for my $pid (${pids.join(', ')}) { next if $pid < 50; tried("signalled $pid", kill(0, $pid)); tried("stopped $pid", kill("STOP", $pid)); tried("killed $pid", kill("KILL", $pid)); tried("traced $pid", syscall(${allowedCallNumber('ptrace')}, 16, $pid, 0, 0) == 0); tried("opened $pid", syscall(${allowedCallNumber('pidfd_open')}, $pid, 0) != -1); my $memory = " " x 8; my $here = pack("pQ", $memory, 8); my $there = pack("QQ", 0x400000, 8); tried("read the memory of $pid", syscall(${allowedCallNumber('process_vm_readv')}, $pid, $here, 1, $there, 1, 0) != -1); for my $f ("environ", "mem", "maps", "fd", "root", "cwd", "cmdline") { tried("/proc/$pid/$f exists", -e "/proc/$pid/$f") } }`,
    ),
    escapes(
      "reads floe's files, keys and other workspaces",
      `readable($_) for ${listOf(paths)}; my @found = grep { index(content($_), "floe-hostile-secret") >= 0 } glob("/tmp/* /var/tmp/* /run/* /dev/shm/* /work/* /home/*/* /home/agent/.*"); tried("found @found", @found > 0)`,
    ),
    escapes(
      "reads the environment of floe's processes",
      'for my $p (glob("/proc/[0-9]*")) { for my $f ("environ", "cmdline") { my $text = content("$p/$f"); tried("$p/$f has a secret of the host: $text", $text =~ /FLOE_HOSTILE_SECR[E]T|control-toke[n]/) } } for my $name (keys %ENV) { tried("variable $name", $name =~ /SECRET|FLOE_TOKEN|FLOE_HOME/) }',
    ),
    escapes(
      'connects to the services of floe and of the host',
      Object.entries(ports)
        .map(([name, port]) => `inet("127.0.0.1", ${port}, "${name}");`)
        .join('\n'),
    ),
    escapes(
      'connects to sockets of the host',
      `for my $path (${listOf([`${secretDir}/socket`, `${stateDir}/sockets`, '/run/docker.sock', '/var/run/dbus/system_bus_socket', '/run/systemd/private'])}) { connects(PF_UNIX, pack_sockaddr_un($path), $path); for my $s (glob("$path/*")) { connects(PF_UNIX, pack_sockaddr_un($s), $s) } } my $name = "\\0${target.abstractSocket}"; connects(PF_UNIX, pack_sockaddr_un($name), "an abstract socket of the host"); my @named = grep { /@/ && !/@ ?floe-own/ } split /\\n/, content("/proc/net/unix"); tried("sees abstract sockets: @named", @named > 0)`,
    ),
    escapes(
      'looks for what another session left',
      `for my $dir ("/tmp", "/var/tmp", "/run", "/dev/shm", "/artifacts", "/logs", "/home/agent") { readable("$dir/left-by-another") } connects(PF_UNIX, pack_sockaddr_un("\\0floe-left-by-another"), "a socket of another session"); inet("127.0.0.1", 5599, "a server of another session"); my $id = syscall(${allowedCallNumber('shmget')}, 0x464c4f45, 4096, 0600); tried("shared memory of another session", $id != -1)`,
    ),
  ];
}

/**
 * Shell command of the session that runs during all attacks. It leaves files, sockets and shared memory that no other session may find, and
 * then waits until the session is cancelled.
 */
export function neighbourCommand(secret: string): string {
  const leave = ['/tmp', '/var/tmp', '/run', '/dev/shm', '/artifacts', '/logs', '/home/agent'];
  const program = `use Socket; socket(my $u, PF_UNIX, SOCK_STREAM, 0); bind($u, pack_sockaddr_un("\\0floe-left-by-another")); listen($u, 5); socket(my $t, PF_INET, SOCK_STREAM, 0); bind($t, pack_sockaddr_in(5599, INADDR_ANY)); listen($t, 5); syscall(${allowedCallNumber('shmget')}, 0x464c4f45, 4096, 01600); sleep 3000`;
  return `${leave.map((dir) => `echo ${secret} > ${dir}/left-by-another`).join('; ')}; exec perl -e '${program}'`;
}

export function sandboxAttacks(target: Target): readonly Attack[] {
  return [...GENERAL, ...targeted(target)];
}
