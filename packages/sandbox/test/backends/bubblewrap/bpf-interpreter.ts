/** The data of a system call that the kernel passes to a filter (`struct seccomp_data` of linux/seccomp.h). */
export type CallData = {
  readonly number: number;
  /** Architecture of the call, as a constant of linux/audit.h. */
  readonly architecture: number;
  /** First argument of the system call, a number of 64 bits. */
  readonly argument: bigint;
};

const INSTRUCTION_BYTES = 8;
const DATA_BYTES = 64;

/**
 * Runs a filter program in classic BPF on the data of one system call and returns its result. Throws for an instruction that the filters of
 * this project do not use. Throws for a jump or load outside of the program or the data, which the kernel would refuse.
 */
export function runFilter(program: Buffer, call: CallData): number {
  const data = Buffer.alloc(DATA_BYTES);
  data.writeUInt32LE(call.number >>> 0, 0);
  data.writeUInt32LE(call.architecture, 4);
  data.writeBigUInt64LE(BigInt.asUintN(64, call.argument), 16);
  let accumulator = 0;
  for (let at = 0; at < program.length; at += INSTRUCTION_BYTES) {
    const code = program.readUInt16LE(at);
    const operand = program.readUInt32LE(at + 4);
    const jump = (condition: boolean): void => {
      at += INSTRUCTION_BYTES * program.readUInt8(at + (condition ? 2 : 3));
    };
    switch (code) {
      case 0x20:
        accumulator = data.readUInt32LE(operand);
        break;
      case 0x15:
        jump(accumulator === operand);
        break;
      case 0x35:
        jump(accumulator >= operand);
        break;
      case 0x45:
        jump((accumulator & operand) !== 0);
        break;
      case 0x06:
        return operand;
      default:
        throw new Error(`instruction ${at / INSTRUCTION_BYTES} has the unknown code 0x${code.toString(16)}`);
    }
  }
  throw new Error('the program ended without a result');
}
