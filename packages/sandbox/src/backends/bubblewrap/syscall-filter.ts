import type { Architecture, ArgumentCondition, DeniedCall, DeniedErrno } from '../denied-calls.ts';

/*
 * The system call filter of a sandbox: a program in classic BPF, which the kernel runs at each system call (seccomp). bwrap installs it.
 * The format of the program is `struct sock_filter` of linux/filter.h; the data that it reads is `struct seccomp_data` of linux/seccomp.h.
 */

/**
 * One BPF instruction. A jump skips the next `onTrue` instructions when its condition holds, and otherwise the next `onFalse` instructions.
 * Other instructions ignore these two fields.
 */
type Instruction = {
  readonly code: number;
  readonly onTrue: number;
  readonly onFalse: number;
  readonly operand: number;
};

const INSTRUCTION_BYTES = 8;

/**
 * Codes of the BPF instructions. `LOAD` loads a value into the accumulator; jumps compare the accumulator with their operand.
 */
const LOAD = 0x20;
const JUMP_IF_EQUAL = 0x15;
const JUMP_IF_AT_LEAST = 0x35;
const JUMP_IF_ANY_BIT = 0x45;
const RETURN = 0x06;

/**
 * Offsets in `struct seccomp_data`, in bytes. The low half of an argument is first, because x86-64 and arm64 are little-endian.
 */
const CALL_NUMBER = 0;
const ARCHITECTURE = 4;
const FIRST_ARGUMENT = 16;

/** Return values of the filter program. A program that denies a call returns `FAIL` plus an errno. */
const ALLOW = 0x7fff_0000;
const FAIL = 0x0005_0000;
const KILL_PROCESS = 0x8000_0000;

/** Error numbers on Linux, which are the same on x86-64 and arm64. */
const ERRNO: Readonly<Record<DeniedErrno, number>> = { EPERM: 1, ENOSYS: 38, EAFNOSUPPORT: 97 };

/** Values of `seccomp_data.arch`, AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h. */
const AUDIT_ARCHITECTURE: Readonly<Record<Architecture, number>> = { x86_64: 0xc000_003e, aarch64: 0xc000_00b7 };

/** Bit that marks the numbers of x32 calls. They are a second set of calls of the same architecture, with pointers of 32 bits. */
const X32_BIT = 0x4000_0000;

/** Returns the architecture of this process as the kernel names it; `null` when floe has no filter for it. */
export function architectureOf(nodeArch: string): Architecture | null {
  switch (nodeArch) {
    case 'x64':
      return 'x86_64';
    case 'arm64':
      return 'aarch64';
    default:
      return null;
  }
}

/**
 * Returns the program of a filter that denies `calls` and allows all other calls. A process that makes a call of another architecture, for
 * example a 32-bit program, is killed. Such calls cannot be denied one by one, because their numbers have other meanings, and a program could
 * not even exit if every call failed.
 */
export function syscallFilter(architecture: Architecture, calls: readonly DeniedCall[]): Buffer {
  return encode([
    load(ARCHITECTURE),
    jump(JUMP_IF_EQUAL, AUDIT_ARCHITECTURE[architecture], 1, 0),
    end(KILL_PROCESS),
    load(CALL_NUMBER),
    ...(architecture === 'x86_64' ? [jump(JUMP_IF_AT_LEAST, X32_BIT, 0, 1), end(FAIL + ERRNO.ENOSYS)] : []),
    ...calls.flatMap((call) => denial(architecture, call)),
    end(ALLOW),
  ]);
}

function denial(architecture: Architecture, { numbers, errno, when }: DeniedCall): Instruction[] {
  const fail = end(FAIL + ERRNO[errno]);
  const body = when === null ? [fail] : [load(FIRST_ARGUMENT), ...conditionJumps(when), fail, end(ALLOW)];
  return [jump(JUMP_IF_EQUAL, numbers[architecture], 0, body.length), ...body];
}

/**
 * Returns jump instructions that check a condition. When it holds, the instruction after the jumps is executed; otherwise that instruction
 * is skipped.
 */
function conditionJumps(when: ArgumentCondition): Instruction[] {
  if ('anyBit' in when) return [jump(JUMP_IF_ANY_BIT, when.anyBit, 0, 1)];
  const { noneOf } = when;
  return noneOf.map((value, index) => jump(JUMP_IF_EQUAL, value, noneOf.length - index, 0));
}

function load(offset: number): Instruction {
  return { code: LOAD, onTrue: 0, onFalse: 0, operand: offset };
}

function jump(code: number, operand: number, onTrue: number, onFalse: number): Instruction {
  return { code, onTrue, onFalse, operand };
}

function end(result: number): Instruction {
  return { code: RETURN, onTrue: 0, onFalse: 0, operand: result };
}

function encode(program: readonly Instruction[]): Buffer {
  const bytes = Buffer.alloc(program.length * INSTRUCTION_BYTES);
  for (const [index, { code, onTrue, onFalse, operand }] of program.entries()) {
    const at = index * INSTRUCTION_BYTES;
    bytes.writeUInt16LE(code, at);
    bytes.writeUInt8(onTrue, at + 2);
    bytes.writeUInt8(onFalse, at + 3);
    bytes.writeUInt32LE(operand, at + 4);
  }
  return bytes;
}
