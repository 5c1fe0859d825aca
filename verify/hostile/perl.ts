// Parts of the Perl programs that hostile agents run. Perl is used because it makes arbitrary system calls and starts in milliseconds.
import { architectureOf } from '#sandbox/backends/bubblewrap/syscall-filter';

/** Shell command that runs the Perl program of the variable `PROGRAM`. */
export const RUN_PERL = 'perl -e "$PROGRAM"';

/**
 * Line that a probe (a Perl program that tries forbidden actions) prints after its last check. Without this line in its output, a probe has
 * not run to its end and proves nothing.
 */
export const PROBE_END = 'probe ended';
/** Start of the line that a probe prints for each forbidden action that succeeded. */
export const PROBE_BROKE = 'broke: ';

/**
 * Perl functions of all probes. `tried(NAME, RESULT)` prints a line if RESULT is true, which means that a forbidden action succeeded;
 * `attempt(NAME, CALL)` does the same for the result of a function; `readable(PATH)` tries to read a file or a directory.
 */
const PROBE = `
use Socket; use IO::Socket; use POSIX (); use Fcntl;
$| = 1; $SIG{PIPE} = "IGNORE";
my $checks = 0;
sub tried { my ($what, $worked) = @_; $checks++; print "${PROBE_BROKE}$what\\n" if $worked; }
sub attempt { my ($what, $call) = @_; tried($what, eval { $call->() }); }
sub content { my ($path) = @_; sysopen(my $f, $path, O_RDONLY | O_NONBLOCK) or return ""; sysread($f, my $text, 4096); return $text // ""; }
sub readable { my ($path) = @_; my $text = content($path); tried("read $path: $text", length $text);
  my @names = glob("$path/*"); @names = grep { -e } @names; tried("listed $path: @names", @names > 0); }
sub connects { my ($domain, $address, $what) = @_;
  socket(my $s, $domain, SOCK_STREAM, 0) or return; fcntl($s, F_SETFL, O_NONBLOCK);
  my $ok = connect($s, $address); 
  if (!$ok && $!{EINPROGRESS}) { my $bits = ""; vec($bits, fileno($s), 1) = 1; $ok = select(undef, $bits, undef, 2) > 0 && unpack("I", getsockopt($s, SOL_SOCKET, SO_ERROR)) == 0; }
  tried("connected to $what", $ok); }
sub inet { my ($host, $port, $what) = @_; connects(PF_INET, pack_sockaddr_in($port, inet_aton($host)), "$what ($host:$port)"); }
`;

/** Returns the Perl program of a probe. It runs the checks in `body` and ends with {@link PROBE_END}. */
export function probe(body: string): string {
  return `use Errno;${PROBE}\n${body};\nprint $checks > 0 ? "${PROBE_END}\\n" : "no check ran\\n";`;
}

/** Numbers of allowed system calls that attacks use. */
const ALLOWED_CALLS = {
  ptrace: { x86_64: 101, aarch64: 117 },
  pidfd_open: { x86_64: 434, aarch64: 434 },
  process_vm_readv: { x86_64: 310, aarch64: 270 },
  chroot: { x86_64: 161, aarch64: 51 },
  mknodat: { x86_64: 259, aarch64: 33 },
  shmget: { x86_64: 29, aarch64: 194 },
  sched_setscheduler: { x86_64: 144, aarch64: 119 },
  prlimit64: { x86_64: 302, aarch64: 261 },
  memfd_create: { x86_64: 319, aarch64: 279 },
} as const;

export function allowedCallNumber(name: keyof typeof ALLOWED_CALLS): number {
  return ALLOWED_CALLS[name][architectureOf(process.arch) ?? 'x86_64'];
}
