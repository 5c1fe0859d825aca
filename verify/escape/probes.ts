import { deniedCall } from '../fixtures/launcher.ts';
import { DENIED, FAMILIES, listOf } from '../hostile/attacks/sandbox.ts';
import { allowedCallNumber } from '../hostile/perl.ts';

/** The parts of the host, and of another sandbox, that probes try to reach. The program itself has created all of them. */
export type Surroundings = {
  /** Directory that every user of the host may read, with the files `secret` and `socket`. */
  readonly secretDir: string;
  /** Text in the file `secret`, in a variable of the host's program, and in files of the other sandbox. */
  readonly secret: string;
  /** State directory of the runtimes. */
  readonly stateDir: string;
  /** Sockets of container engines. */
  readonly engineSockets: readonly string[];
  /** Ids of the host's processes that run the sandboxes. */
  readonly pids: readonly number[];
  /** Ports of servers on the host's loopback interface. */
  readonly ports: readonly number[];
  /** Name of a socket in the host's abstract namespace. */
  readonly abstractSocket: string;
};

export type Probe = {
  readonly kind: 'host files' | 'processes' | 'network' | 'kernel' | 'devices' | 'privileges' | 'neighbour';
  /** What an agent tries to do. It is unique. */
  readonly name: string;
  /** Perl code that prints a line for each forbidden action that succeeded. */
  readonly body: string;
};

type Family = keyof typeof FAMILIES;

/** Error numbers of calls that a filter or the kernel refuses: EPERM, ENOSYS and EAFNOSUPPORT. Other errors come from the call itself. */
const REFUSED = [1, 38, 97];

/**
 * Returns Perl code that checks that a system call is refused. A child process makes the call, because a filter may kill the caller, and
 * because the call may be a fork.
 */
function refused(name: string, number: number, args: string): string {
  return `{ pipe(my $in, my $out); if (!fork) { my $r = syscall(${number}, ${args}); my $e = $! + 0; syswrite($out, "${name}: result $r, error $e\\n") if $r != -1 || !grep { $_ == $e } (${REFUSED.join(', ')}); POSIX::_exit(0) } close $out; my $line = <$in> // ""; wait; chomp $line; tried($line, $line ne "") }`;
}

function refusedFamilies(names: readonly Family[]): string {
  const { number } = deniedCall('socket');
  const calls = names.flatMap((name) =>
    [1, 2, 3].map((type) => refused(name, number, `${FAMILIES[name]}, ${type}, 0`)),
  );
  return calls.join('\n');
}

/** Files of the host's kernel that a process could change for all others. They are opened for writing, and nothing is written. */
const KERNEL_FILES = {
  'change the program for core dumps': ['/proc/sys/kernel/core_pattern'],
  'change the program that loads modules': ['/proc/sys/kernel/modprobe'],
  'change how the kernel commits memory': ['/proc/sys/vm/overcommit_memory', '/proc/sys/vm/panic_on_oom'],
  'register a program format': ['/proc/sys/fs/binfmt_misc/register'],
  'use the keys of the console': ['/proc/sysrq-trigger'],
  'forward packets': ['/proc/sys/net/ipv4/ip_forward'],
  'change the number of namespaces': ['/proc/sys/user/max_user_namespaces'],
  'change the program for device events': ['/sys/kernel/uevent_helper'],
  'change the release agent of control groups': ['/sys/fs/cgroup/release_agent', '/sys/fs/cgroup/memory/release_agent'],
  'change its own control group': [
    '/sys/fs/cgroup/cgroup.procs',
    '/sys/fs/cgroup/memory.max',
    '/sys/fs/cgroup/pids.max',
  ],
} as const;

const DEVICES = {
  'use the memory of the host': ['mem', 'port', 'kmem'],
  'use the log device of the kernel': ['kmsg'],
  'start virtual machines': ['kvm', 'vhost-net', 'vhost-vsock', 'vsock'],
  'mount file systems through FUSE': ['fuse', 'cuse'],
  'create network devices': ['net/tun'],
  'use disks': ['vda', 'sda', 'nvme0n1', 'loop0', 'loop-control', 'mapper/control', 'dm-0'],
  'use graphics and input devices': ['input/event0', 'dri/card0', 'fb0', 'uinput'],
  'use the random source and hardware counters': ['hwrng', 'snapshot', 'userfaultfd'],
} as const;

/** System calls that are also tried in their x32 form, which has other numbers. */
const X32 = ['keyctl', 'unshare', 'socket'];

/** Numbers of the capabilities that would let a process leave its sandbox. */
const CAPABILITIES = {
  CAP_DAC_READ_SEARCH: 2,
  CAP_NET_ADMIN: 12,
  CAP_NET_RAW: 13,
  CAP_SYS_MODULE: 16,
  CAP_SYS_RAWIO: 17,
  CAP_SYS_ADMIN: 21,
  CAP_SYS_BOOT: 22,
  CAP_SYS_TIME: 25,
  CAP_MKNOD: 27,
  CAP_SYSLOG: 34,
  CAP_BPF: 39,
} as const;

/**
 * Numbers of system calls that the filter permits and that the kernel refuses to processes without a capability. They depend on the
 * architecture.
 */
const REBOOT = process.arch === 'arm64' ? 142 : 169;
const SWAPON = process.arch === 'arm64' ? 224 : 167;
const SETHOSTNAME = process.arch === 'arm64' ? 161 : 170;

/** Paths that exist on hosts but not in sandboxes. A process that finds one of them has left its sandbox. */
const HOST_ONLY = ['root/.bashrc', 'root/.ssh', 'boot', 'var/lib/dpkg/status', 'etc/hostname.d', 'work', 'lost+found'];

function opens(paths: readonly string[]): string {
  return `for my $p ${listOf(paths)} { attempt("opened $p for writing", sub { sysopen(my $f, $p, O_WRONLY | O_NONBLOCK) }) }`;
}

/** Returns the probes of a sandbox without network. */
export function probesOf(around: Surroundings): Probe[] {
  return [
    ...files(around),
    ...processes(around),
    ...network(around),
    ...kernel(),
    ...devices(),
    ...privileges(),
    ...neighbour(around),
  ];
}

function files({ secretDir, stateDir, secret, engineSockets }: Surroundings): Probe[] {
  const kind = 'host files';
  const roots = '"/proc/1", "/proc/self", "/proc/" . getppid';
  return [
    {
      kind,
      name: 'read a directory that every user of the host may read',
      body: `readable("${secretDir}"); readable("${secretDir}/secret")`,
    },
    {
      kind,
      name: "read the state of floe's runtimes",
      body: `readable($_) for ("${stateDir}", glob("${stateDir}/*"), "${stateDir}/sockets")`,
    },
    {
      kind,
      name: 'leave its root through the root of a process',
      body: `for my $p (${roots}) { for my $d ("root", "cwd", "root/..", "cwd/../../../../..") { tried("$p/$d", -e "$p/$d${secretDir}/secret") } }`,
    },
    {
      kind,
      name: 'leave its root by chroot',
      body: `mkdir "/tmp/jail"; opendir(my $d, "/"); chroot("/tmp/jail") and do { chdir($d); chdir("..") for 1 .. 20; chroot(".") }; tried("found the file of the host", -e "${secretDir}/secret")`,
    },
    {
      kind,
      name: 'find files of the host by their place',
      body: `chdir "/"; my @seen = grep { -e "../../../$_" && !-e "/$_" } ${listOf(HOST_ONLY)}; tried("@seen", @seen > 0)`,
    },
    {
      kind,
      name: 'find a secret of the host in a file',
      body: `my @found = grep { index(content($_), "${secret}") >= 0 } glob("/tmp/* /var/tmp/* /run/* /dev/shm/* /work/* /home/*/* /etc/* /opt/* /srv/* /mnt/* /.floe/*"); tried("@found", @found > 0)`,
    },
    {
      kind,
      name: 'use the socket of a container engine',
      body: `for my $p ${listOf(['/var/run/docker.sock', '/run/docker.sock', '/run/podman/podman.sock', '/run/containerd/containerd.sock', ...engineSockets])} { tried("$p exists", -e $p); connects(PF_UNIX, pack_sockaddr_un($p), $p) }`,
    },
    {
      kind,
      name: 'use sockets of system services',
      body: 'for my $p ("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify", "/run/user/0/bus") { connects(PF_UNIX, pack_sockaddr_un($p), $p) }',
    },
    {
      kind,
      name: 'use descriptors that it inherited',
      body: 'tried("", 0); for my $fd (3 .. 1100) { open(my $f, "<&=", $fd) or next; my $to = readlink("/proc/self/fd/$fd") // ""; tried("descriptor $fd is $to", $to !~ m{^(pipe|anon_inode|/dev/null)}) }',
    },
    {
      kind,
      name: 'change the programs that floe runs in its sandbox',
      body: 'for my $p (glob("/.floe/*"), glob("/.floe/*/*"), glob("/.floe/*/*/*")) { attempt("opened $p for writing", sub { open(my $f, ">>", $p) }); attempt("removed $p", sub { unlink $p }); attempt("renamed $p", sub { rename $p, "$p.old" }); attempt("changed the mode of $p", sub { chmod 0777, $p }) } tried("", 0)',
    },
  ];
}

function processes({ pids, secret }: Surroundings): Probe[] {
  const kind = 'processes';
  const each = (code: string): string => `tried("", 0); for my $pid (${pids.join(', ')}) { ${code} }`;
  // Numbers below 300 are skipped, because they may be the sandbox's own process ids.
  const isOther = 'next if $pid < 300;';
  return [
    {
      kind,
      name: 'see processes of the host',
      body: each(
        `tried("/proc/$pid/cmdline: " . content("/proc/$pid/cmdline"), content("/proc/$pid/cmdline") =~ /escape/)`,
      ),
    },
    { kind, name: 'signal processes of the host', body: each(`${isOther} tried("signalled $pid", kill(0, $pid))`) },
    {
      kind,
      name: 'trace processes of the host',
      body: each(`${isOther} tried("traced $pid", syscall(${allowedCallNumber('ptrace')}, 16, $pid, 0, 0) == 0)`),
    },
    {
      kind,
      name: 'open descriptors of processes of the host',
      body: each(`${isOther} tried("opened $pid", syscall(${allowedCallNumber('pidfd_open')}, $pid, 0) != -1)`),
    },
    {
      kind,
      name: 'read the memory of processes of the host',
      body: each(
        `${isOther} my $memory = " " x 8; my $here = pack("pQ", $memory, 8); my $there = pack("QQ", 0x400000, 8); tried("read $pid", syscall(${allowedCallNumber('process_vm_readv')}, $pid, $here, 1, $there, 1, 0) != -1); tried("opened its memory", sysopen(my $f, "/proc/$pid/mem", O_RDONLY))`,
      ),
    },
    {
      kind,
      name: 'read a secret in the environment of a process',
      body: `for my $p (glob("/proc/[0-9]*")) { for my $f ("environ", "cmdline") { my $text = content("$p/$f"); tried("$p/$f", index($text, "${secret}") >= 0 && $text !~ /probe ended/) } } tried("", 0)`,
    },
    {
      kind,
      name: 'find secrets in its own environment',
      body: 'tried("variable $_", /SECRET|FLOE_TOKEN|FLOE_HOME/) for keys %ENV; tried("", 0)',
    },
  ];
}

function network({ ports, abstractSocket, secretDir }: Surroundings): Probe[] {
  const kind = 'network';
  const alone =
    'my @devices = grep { $_ ne "lo" } map { /^\\s*(\\w+):/ } split /\\n/, content("/proc/net/dev"); tried("", 0);';
  return [
    { kind, name: 'use a network device', body: `${alone} tried("@devices", @devices > 0)` },
    {
      kind,
      name: 'use a route',
      body: 'my @routes = split /\\n/, content("/proc/net/route"); tried("@routes", @routes > 1)',
    },
    {
      kind,
      name: 'connect to servers on the loopback interface of the host',
      body: `inet("127.0.0.1", $_, "the host") for (${ports.join(', ')}); tried("", 0)`,
    },
    {
      kind,
      name: 'send datagrams to the loopback interface of the host',
      body: `tried("", 0); for my $port (${ports.join(', ')}) { socket(my $s, PF_INET, SOCK_DGRAM, 0) or next; connect($s, pack_sockaddr_in($port, inet_aton("127.0.0.1"))) or next; defined send($s, "x", 0) or next; my $bits = ""; vec($bits, fileno($s), 1) = 1; select($bits, undef, undef, 0.3); my $reply; tried("got a reply of $port", defined recv($s, $reply, 9, MSG_DONTWAIT)) }`,
    },
    {
      kind,
      name: 'connect to the metadata service',
      body: `${alone} inet("169.254.169.254", 80, "the metadata service") if !@devices; connects(PF_INET6, pack_sockaddr_in6(80, Socket::inet_pton(AF_INET6, "fd00:ec2::254")), "the metadata service over IPv6") if !@devices`,
    },
    {
      kind,
      name: 'connect to private networks',
      body: `${alone} if (!@devices) { inet($_, 80, "a private network") for ("10.0.0.1", "172.17.0.1", "192.168.0.1") }`,
    },
    { kind, name: 'connect to the internet', body: `${alone} inet("1.1.1.1", 443, "the internet") if !@devices` },
    {
      kind,
      name: 'resolve names',
      body: 'tried("resolved a name", defined scalar gethostbyname("localhost.localdomain.example"))',
    },
    {
      kind,
      name: 'connect to an abstract socket of the host',
      body: `connects(PF_UNIX, pack_sockaddr_un("\\0${abstractSocket}"), "the socket"); tried("", 0)`,
    },
    {
      kind,
      name: 'see abstract sockets of the host',
      body: `my @named = grep { /${abstractSocket}/ } split /\\n/, content("/proc/net/unix"); tried("@named", @named > 0)`,
    },
    {
      kind,
      name: 'connect to a Unix socket of the host',
      body: `connects(PF_UNIX, pack_sockaddr_un("${secretDir}/socket"), "the socket"); tried("", 0)`,
    },
    {
      kind,
      name: 'create raw sockets',
      body: 'for my $domain (PF_INET, PF_INET6) { tried("a raw socket", socket(my $s, $domain, SOCK_RAW, 1)) }',
    },
    { kind, name: 'create packet sockets', body: refusedFamilies(['AF_PACKET']) },
    { kind, name: 'create sockets of the virtual machine', body: refusedFamilies(['AF_VSOCK']) },
    { kind, name: 'create sockets of the cryptography of the kernel', body: refusedFamilies(['AF_ALG']) },
    {
      kind,
      name: 'create sockets of other families',
      body: refusedFamilies(
        (Object.keys(FAMILIES) as Family[]).filter((name) => !['AF_PACKET', 'AF_VSOCK', 'AF_ALG'].includes(name)),
      ),
    },
  ];
}

function kernel(): Probe[] {
  const kind = 'kernel';
  const minus = '(-1) x 6';
  return [
    ...DENIED.map(
      ([purpose, names]) =>
        ({
          kind,
          name: purpose,
          body: names.map((each) => refused(each, deniedCall(each).number, minus)).join('\n'),
        }) as const,
    ),
    ...Object.entries(KERNEL_FILES).map(([name, paths]) => ({ kind, name, body: opens(paths) }) as const),
    ...(process.arch === 'x64'
      ? ([
          {
            kind,
            name: 'make system calls in the x32 form',
            body: X32.map((each) => refused(each, 0x4000_0000 + deniedCall(each).number, minus)).join('\n'),
          },
        ] as const)
      : []),
    {
      kind,
      name: 'map other user ids',
      body: 'for my $p ("uid_map", "gid_map") { attempt("wrote $p", sub { sysopen(my $f, "/proc/self/$p", O_WRONLY) && defined syswrite($f, "0 0 1\\n") }) }',
    },
    // The numbers that would restart the machine are wrong on purpose: the kernel checks the permission first.
    { kind, name: 'restart the machine', body: refused('reboot', REBOOT, '1, 2, 3, 0') },
    {
      kind,
      name: 'use a file as swap space',
      body: `my $none = "/nonexistent"; ${refused('swapon', SWAPON, '$none, 0')}`,
    },
    {
      kind,
      name: 'change the name of the machine',
      body: `my $name = "x"; ${refused('sethostname', SETHOSTNAME, '$name, 1')}`,
    },
  ];
}

function devices(): Probe[] {
  const kind = 'devices';
  const mknod = (type: string, device: number): string =>
    `for my $at ("/tmp/d", "/dev/d", "d") { my $d = $at; unlink $d; my $made = syscall(${allowedCallNumber('mknodat')}, -100, $d, ${type}, ${device}) == 0; tried("opened a device made at $d", $made && sysopen(my $f, $d, O_RDONLY | O_NONBLOCK)) } tried("", 0)`;
  return [
    ...Object.entries(DEVICES).map(([name, paths]) => ({
      ...({ kind, name } as const),
      body: `for my $d ${listOf(paths)} { tried("/dev/$d exists", -e "/dev/$d") }`,
    })),
    { kind, name: 'make a device of a disk and open it', body: mknod('0060666', 254 * 256) },
    { kind, name: 'make a device of the memory and open it', body: mknod('0020666', 256 + 1) },
  ];
}

function privileges(): Probe[] {
  const kind = 'privileges';
  const capabilities = Object.entries(CAPABILITIES).map(
    ([name, number]) =>
      `for my $set ("Eff", "Prm", "Amb") { my ($mask) = $s =~ /Cap$set:\\s*(\\w+)/; tried("${name} is $set", hex($mask) >> ${number} & 1) }`,
  );
  const limit = (name: string, number: number): Probe => ({
    ...({ kind, name: `raise its limit of ${name}` } as const),
    body: `my $old = "\\0" x 16; syscall(${allowedCallNumber('prlimit64')}, 0, ${number}, 0, $old); my ($soft, $hard) = unpack("QQ", $old); my $new = pack("QQ", 0xffffffffffffffff, 0xffffffffffffffff); tried("raised it", $hard != 0xffffffffffffffff && syscall(${allowedCallNumber('prlimit64')}, 0, ${number}, $new, 0) == 0); tried("", 0)`,
  });
  return [
    {
      kind,
      name: 'get privileges from a program',
      body: 'my $s = content("/proc/self/status"); tried("new privileges are allowed", $s !~ /NoNewPrivs:\\t1/)',
    },
    {
      kind,
      name: 'use the capabilities of an administrator',
      body: `my $s = content("/proc/self/status"); ${capabilities.join('\n')}`,
    },
    {
      kind,
      name: 'take priority over other sandboxes',
      body: 'attempt("a lower nice value", sub { my $n = POSIX::nice(-5); defined $n })',
    },
    {
      kind,
      name: 'use real-time scheduling',
      body: `my $priority = pack("i", 10); tried("real-time scheduling", syscall(${allowedCallNumber('sched_setscheduler')}, 0, 1, $priority) == 0)`,
    },
    {
      kind,
      name: 'be spared when memory is short',
      body: 'attempt("a lower score", sub { sysopen(my $f, "/proc/self/oom_score_adj", O_WRONLY) && defined(syswrite($f, "-1000\\n")) })',
    },
    limit('open files', 7),
    limit('processes', 6),
  ];
}

/** Probes for the files, sockets, shared memory and processes that `neighbourCommand` of the attacks leaves in another sandbox. */
function neighbour({ secret }: Surroundings): Probe[] {
  const kind = 'neighbour';
  return [
    {
      kind,
      name: 'read files of another sandbox',
      body: `for my $dir ("/tmp", "/var/tmp", "/run", "/dev/shm", "/artifacts", "/logs", "/home/agent") { tried("$dir", index(content("$dir/left-by-another"), "${secret}") >= 0) }`,
    },
    {
      kind,
      name: 'connect to an abstract socket of another sandbox',
      body: 'connects(PF_UNIX, pack_sockaddr_un("\\0floe-left-by-another"), "the socket"); tried("", 0)',
    },
    {
      kind,
      name: 'connect to a server of another sandbox',
      body: 'inet("127.0.0.1", 5599, "a server of another sandbox"); tried("", 0)',
    },
    {
      kind,
      name: 'use shared memory of another sandbox',
      body: `tried("shared memory", syscall(${allowedCallNumber('shmget')}, 0x464c4f45, 4096, 0600) != -1)`,
    },
    {
      kind,
      name: 'see processes of another sandbox',
      body: 'my @seen = grep { content("$_/cmdline") =~ /floe-left-by-anothe[r]/ && $_ ne "/proc/$$" } glob("/proc/[0-9]*"); tried("@seen", @seen > 0)',
    },
  ];
}
