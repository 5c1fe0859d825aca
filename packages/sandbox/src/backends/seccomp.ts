import type { DeniedCall } from './denied-calls.ts';

/** Numbers of the errors of denied calls, on Linux. */
const ERRNO = { EPERM: 1, ENOSYS: 38, EAFNOSUPPORT: 97 } as const;

type Argument = { readonly index: 0; readonly op: string; readonly value: number; readonly valueTwo?: number };

type Rule = {
  readonly names: readonly string[];
  readonly action: 'SCMP_ACT_ERRNO';
  readonly errnoRet: number;
  readonly args: readonly Argument[];
};

/** Returns the system call filter that denies `calls`, in the JSON form of container engines. */
export function seccompProfile(calls: readonly DeniedCall[]): string {
  return JSON.stringify({ defaultAction: 'SCMP_ACT_ALLOW', syscalls: calls.flatMap(rulesOf) });
}

/** Returns the rules of one call. A call is denied when any of them matches. */
function rulesOf({ name, errno, when }: DeniedCall): Rule[] {
  const rule = (args: readonly Argument[]): Rule => ({
    names: [name],
    action: 'SCMP_ACT_ERRNO',
    errnoRet: ERRNO[errno],
    args,
  });
  if (when === null) return [rule([])];
  if ('anyBit' in when) {
    return bitsOf(when.anyBit).map((bit) => rule([{ index: 0, op: 'SCMP_CMP_MASKED_EQ', value: bit, valueTwo: bit }]));
  }
  // `noneOf` lists the allowed values, and a rule can compare an argument with one value only. So each denied value below the largest allowed
  // value has a rule, and one more rule denies all larger values.
  const largest = Math.max(...when.noneOf);
  const denied = Array.from({ length: largest }, (_, value) => value).filter((value) => !when.noneOf.includes(value));
  return [
    ...denied.map((value) => rule([{ index: 0, op: 'SCMP_CMP_EQ', value }])),
    rule([{ index: 0, op: 'SCMP_CMP_GT', value: largest }]),
  ];
}

function bitsOf(mask: number): number[] {
  return Array.from({ length: 31 }, (_, bit) => 2 ** bit).filter((bit) => (mask & bit) !== 0);
}
