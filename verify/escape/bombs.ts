/**
 * How a command ended: at its limit of memory or processes, at its time limit (`deadline`), by itself (`exit` with status 0, `error` with
 * another status), or by a signal. `sandbox lost` when its sandbox ended.
 */
export type BombEnd = 'memory' | 'processes' | 'deadline' | 'exit' | 'error' | 'signal' | 'sandbox lost';

/** A command that uses up a resource. */
export type Bomb = {
  /** What the command does, as a phrase. It is unique. */
  readonly name: string;
  /** The shell command. */
  readonly command: string;
  /** Perl program in the variable `PROGRAM` of the command. */
  readonly program?: string;
  /** Allowed ends of the command. A sandbox may always be ended as a whole at its limit of memory or processes. */
  readonly ends: readonly BombEnd[];
};

const RUN = 'exec perl -e "$PROGRAM"';
const AT_LIMIT: readonly BombEnd[] = ['memory', 'processes', 'error', 'signal', 'deadline'];

export const BOMBS: readonly Bomb[] = [
  { name: 'forks without end', command: 'bomb() { bomb | bomb & }; bomb; sleep 60', ends: AT_LIMIT },
  {
    name: 'forks again whenever a process is killed',
    command: RUN,
    program: '$SIG{CHLD} = "IGNORE"; while (1) { fork; fork; select undef, undef, undef, 0.01 }',
    ends: AT_LIMIT,
  },
  { name: 'uses up memory', command: RUN, program: 'my @a; push @a, "x" x 1e7 while 1', ends: AT_LIMIT },
  {
    name: 'uses up memory in many processes',
    command: RUN,
    program: 'for (1 .. 20) { next if fork; my @a; push @a, "x" x 1e6 for 1 .. 60; sleep 60 } sleep 60',
    ends: AT_LIMIT,
  },
  {
    name: 'makes as many files as it can',
    command: RUN,
    program:
      'my $end = time + 6; my $i = 0; while (time < $end && $i < 1_000_000) { open(my $f, ">", "f$i") or exit 1; $i++ } unlink glob("f*"); exit 0',
    ends: ['exit', 'error', 'deadline', 'memory'],
  },
  {
    name: 'makes a sparse file of 100 GB',
    command: 'truncate -s 100G huge; rm -f huge; dd if=/dev/zero of=large bs=1M count=64 2>/dev/null; rm -f large',
    ends: ['exit', 'error', 'signal', 'memory'],
  },
  {
    name: 'opens as many files as it can',
    command: RUN,
    program: 'my @f; while (@f < 100000) { open(my $f, "<", "/dev/null") or exit 1; push @f, $f } exit 0',
    ends: ['exit', 'error', 'memory', 'deadline'],
  },
  { name: 'prints 300 MB', command: 'head -c 300000000 /dev/zero', ends: ['exit', 'deadline'] },
  {
    name: 'leaves zombies',
    command: RUN,
    program: 'for (1 .. 2000) { my $p = fork; exit 0 if defined $p && !$p } sleep 1',
    ends: ['exit', ...AT_LIMIT],
  },
  {
    name: 'ignores every signal and computes',
    command: 'trap "" TERM INT HUP QUIT USR1 USR2 ALRM PIPE; while :; do :; done',
    ends: ['deadline'],
  },
  {
    name: 'leaves daemons in other sessions',
    command:
      'for i in 1 2 3 4; do (setsid setsid sh -c \'trap "" TERM INT HUP; while :; do sleep 1; done\' >/dev/null 2>&1 &); done; exit 0',
    ends: ['exit'],
  },
  {
    name: 'holds its output open in a daemon',
    command: '(setsid sleep 300 &); exit 0',
    ends: ['exit', 'deadline'],
  },
  {
    name: 'starts threads without end',
    // The program starts processes instead of threads. The kernel counts both in the same way.
    command: RUN,
    program: `my $n = 0; while ($n < 5000) { my $p = fork; last unless defined $p; if (!$p) { sleep 60; exit } $n++ } sleep 1; kill "KILL", -getpgrp()`,
    ends: AT_LIMIT,
  },
];
