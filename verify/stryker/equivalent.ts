import type { Mutant } from './mutants.ts';

/**
 * A mutant that no test can detect, because the changed code behaves as the original does. It is recognized by its text, so that it is
 * still found when its line moves.
 */
export type EquivalentMutant = {
  readonly file: string;
  /** The source line on which the mutant starts, without the indentation. */
  readonly line: string;
  /** The source line before {@link line}, without the indentation. Needed only when the same line occurs several times in the file. */
  readonly before?: string;
  readonly original: string;
  readonly replacement: string;
  /** Why the behavior is the same. */
  readonly reason: string;
};

export const EQUIVALENT_MUTANTS: readonly EquivalentMutant[] = [
  {
    file: 'packages/capture/src/engines/logprobs-probe.ts',
    line: 'if (likeliest === undefined || others.length === 0) return null;',
    original: 'likeliest === undefined',
    replacement: 'false',
    reason: 'Without a likeliest token there are no others, so the second condition is true.',
  },
  {
    file: 'packages/capture/src/engines/vllm/probe.ts',
    line: "throw server.error('unsupported', 'it is paused');",
    original: "'unsupported'",
    replacement: '""',
    reason: 'The error ends the measurement of the logprobs mode, which shows only its message.',
  },
  {
    file: 'packages/capture/src/engines/pool/member.ts',
    line: 'this.verification === null &&',
    original: 'this.verification === null',
    replacement: 'true',
    reason:
      'A verification that is requested while one is running shares it (`verify`). The check only keeps the many calls that may wait meanwhile ' +
      'from each adding a handler that ignores its failure.',
  },
  {
    file: 'packages/capture/src/engines/sglang/reply.ts',
    line: 'const [value, id]: unknown[] = Array.isArray(tuple) ? tuple : [];',
    original: '[]',
    replacement: '["Stryker was here"]',
    reason: 'An entry that is not an array is rejected because it has no id, before its log-probability is read.',
  },
  {
    file: 'packages/capture/src/proxy/prompt/prompt-buffers.ts',
    line: 'const capacity = Math.ceil((start.length + more) * GROWTH);',
    original: '(start.length + more) * GROWTH',
    replacement: '(start.length + more) / GROWTH',
    reason:
      'The first size of a buffer changes nothing but the speed, because `append` enlarges a buffer that is too small.',
  },
  ...['requestChecksumCalculation', 'responseChecksumValidation'].map((option) => ({
    file: 'packages/server/src/store/blobs/s3.ts',
    line: `${option}: 'WHEN_REQUIRED',`,
    original: "'WHEN_REQUIRED'",
    replacement: '""',
    reason:
      'The SDK adds its checksums only for `WHEN_SUPPORTED`; other values differ only in the user agent that it sends.',
  })),
  {
    file: 'packages/capture/src/tokens/same-turn.ts',
    line: 'if (sampled === returned) return true;',
    original: 'sampled === returned',
    replacement: 'false',
    reason: 'Equal texts also pass the comparisons after this check, which saves parsing them.',
  },
];

/** Returns whether a mutant is the change that `known` describes, wherever in the file it is now. */
export function isSameChange(known: Omit<EquivalentMutant, 'reason'>, mutant: Mutant): boolean {
  return (
    known.file === mutant.file &&
    known.line === mutant.line &&
    (known.before === undefined || known.before === mutant.before) &&
    known.original === mutant.original &&
    known.replacement === mutant.replacement
  );
}
