import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { architectureOf, syscallFilter } from '../../../src/backends/bubblewrap/syscall-filter.ts';
import { type Architecture, DENIED_CALLS, DENIED_GROUPS, type DeniedCall } from '../../../src/backends/denied-calls.ts';
import { runFilter } from './bpf-interpreter.ts';

const ALLOW = 0x7fff_0000;
const KILL_PROCESS = 0x8000_0000;
const ERRNO = { EPERM: 1, ENOSYS: 38, EAFNOSUPPORT: 97 };
const FAIL = 0x0005_0000;

const AUDIT = { x86_64: 0xc000_003e, i386: 0x4000_0003, aarch64: 0xc000_00b7, arm: 0x4000_0028, riscv64: 0xc000_00f3 };
const ARCHITECTURES: readonly Architecture[] = ['x86_64', 'aarch64'];
/** AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. */
const FAMILIES = [1, 2, 10, 16];
const X32 = 0x4000_0000;
const CLONE_NEWTIME = 0x80;
/** CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. */
const NAMESPACE_FLAGS = [17, 25, 26, 27, 28, 29, 30].map((shift) => 2 ** shift);

/** A value above the low 32 bits of an argument, which the kernel ignores in calls that take an int. */
const HIGH_BITS = 0x5_0000_0000n;

function callNamed(name: string): DeniedCall {
  const call = DENIED_CALLS.find((each) => each.name === name);
  if (call === undefined) throw new Error(`${name} is not in the table`);
  return call;
}

describe.each(ARCHITECTURES)('the system call filter for %s', (architecture) => {
  const program = syscallFilter(architecture, DENIED_CALLS);
  const result = (number: number, argument = 0n): number =>
    runFilter(program, { number, architecture: AUDIT[architecture], argument });
  const resultOf = (name: string, argument: bigint): number => result(callNamed(name).numbers[architecture], argument);

  it.each(DENIED_CALLS.filter(({ when }) => when === null))('denies $name for every argument', ({ numbers, errno }) => {
    for (const argument of [0n, 1n, -1n, HIGH_BITS]) {
      expect(result(numbers[architecture], argument)).toBe(FAIL + ERRNO[errno]);
    }
  });

  it.each(['socket', 'socketpair'])('allows %s for four families and denies it for every other family', (name) => {
    for (let family = -1; family < 100; family++) {
      const expected = FAMILIES.includes(family) ? ALLOW : FAIL + ERRNO.EAFNOSUPPORT;
      expect(resultOf(name, BigInt(family))).toBe(expected);
      expect(resultOf(name, BigInt.asUintN(32, BigInt(family)) + HIGH_BITS)).toBe(expected);
    }
  });

  it.each(['clone', 'unshare'])('denies %s with a flag for a new namespace and allows it without one', (name) => {
    const denied = name === 'clone' ? NAMESPACE_FLAGS : [CLONE_NEWTIME, ...NAMESPACE_FLAGS];
    for (let shift = 0; shift < 32; shift++) {
      const flag = 2 ** shift;
      const expected = denied.includes(flag) ? FAIL + ERRNO.EPERM : ALLOW;
      expect(resultOf(name, BigInt(flag))).toBe(expected);
      expect(resultOf(name, BigInt(flag) + HIGH_BITS)).toBe(expected);
    }
  });

  it('allows every call that is not in the table', () => {
    const denied = new Set(DENIED_CALLS.map(({ numbers }) => numbers[architecture]));
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: X32 - 1 }),
        fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
        (number, argument) => {
          fc.pre(!denied.has(number));
          expect(result(number, argument)).toBe(ALLOW);
        },
      ),
    );
    for (let number = 0; number < 600; number++) if (!denied.has(number)) expect(result(number)).toBe(ALLOW);
  });

  it('kills a process that makes a call of another architecture', () => {
    for (const [name, audit] of Object.entries(AUDIT)) {
      if (name === architecture) continue;
      for (const number of [0, 1, callNamed('keyctl').numbers[architecture]]) {
        expect(runFilter(program, { number, architecture: audit, argument: 0n })).toBe(KILL_PROCESS);
      }
    }
  });
});

describe('the table of denied calls', () => {
  it.each(ARCHITECTURES)('has each number of %s once', (architecture) => {
    const numbers = DENIED_CALLS.map((call) => call.numbers[architecture]);
    expect(new Set(numbers).size).toBe(numbers.length);
  });

  it('describes the condition of exactly those calls that have one', () => {
    for (const { calls, condition } of DENIED_GROUPS) {
      for (const { when } of calls) expect(when === null).toBe(condition === null);
    }
  });
});

it('the filter denies every call in its x32 form', () => {
  const program = syscallFilter('x86_64', DENIED_CALLS);
  for (const number of [0, 1, callNamed('keyctl').numbers.x86_64, 512, 0xffff_ffff - X32]) {
    const call = { number: X32 + number, architecture: AUDIT.x86_64, argument: 0n };
    expect(runFilter(program, call)).toBe(FAIL + ERRNO.ENOSYS);
  }
});

it('there is no filter for other processors', () => {
  expect(['x64', 'arm64', 'ia32', 'arm', 'riscv64', 'ppc64'].map(architectureOf)).toEqual([
    'x86_64',
    'aarch64',
    null,
    null,
    null,
    null,
  ]);
});
