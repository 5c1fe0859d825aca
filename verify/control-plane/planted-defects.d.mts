/** A defect: what is replaced by what in one file of the built code. */
export type Bug = {
  readonly name: string;
  readonly file: string;
  readonly edits: readonly (readonly [string, string])[];
};
export const BUGS: readonly Bug[];
export function withDefect(
  dist: string,
  bug: { readonly name: string; readonly file: string; readonly edits: readonly (readonly string[])[] },
): { before: string; text: string };
