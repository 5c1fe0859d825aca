import type { Problem, SourceFile } from './source.ts';

/** Maximum number of lines of a TypeScript file. A longer file must be split. */
const MAX_LINES = 600;
/** Maximum for the 90th percentile of the lengths of all files that ship, in lines. */
const P90_LINES = 320;
/** Maximum for the median length of all files that ship, in lines. */
const MEDIAN_LINES = 120;

/** Matches the paths of the files that ship. */
export const PRODUCT = /^packages\/[^/]+\/src\//;

export type Sizes = { readonly files: number; readonly median: number; readonly p90: number; readonly max: number };

/**
 * Returns the number of files, and the median, the 90th percentile and the maximum of their lengths in lines. All are 0 when there are no
 * files.
 */
export function sizesOf(files: readonly SourceFile[]): Sizes {
  const lengths = files.map(lineCount).sort((a, b) => a - b);
  const at = (share: number): number => lengths[Math.min(lengths.length - 1, Math.floor(lengths.length * share))] ?? 0;
  return { files: lengths.length, median: at(0.5), p90: at(0.9), max: at(1) };
}

export function checkSizes(files: readonly SourceFile[]): Problem[] {
  const problems = files.flatMap((file) => {
    const lines = lineCount(file);
    return lines > MAX_LINES ? [{ path: file.path, line: 0, message: `${lines} lines, more than ${MAX_LINES}` }] : [];
  });
  const { median, p90 } = sizesOf(files.filter(({ path }) => PRODUCT.test(path)));
  if (median > MEDIAN_LINES) problems.push(overall(`the median file has ${median} lines, more than ${MEDIAN_LINES}`));
  if (p90 > P90_LINES) problems.push(overall(`the 90th percentile is ${p90} lines, more than ${P90_LINES}`));
  return problems;
}

function lineCount({ text }: SourceFile): number {
  return text.split('\n').length - (text.endsWith('\n') ? 1 : 0);
}

function overall(message: string): Problem {
  return { path: 'packages', line: 0, message };
}
