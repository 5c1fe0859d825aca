/** Number of lines in a part of a file. The search by words finds parts. */
export const PART_LINES = 30;

/** Maximum number of lines of a file. The numbers of its parts are computed from it. */
const MAX_LINES = 2 ** 20;

/** Returns the number of the part of a file that begins at a line, numbered from 0. */
export function rowOfPart(file: number, line: number): number {
  return file * MAX_LINES + line;
}

/** Returns the file and the first line, numbered from 0, of a part. */
export function partOf(row: number): { readonly file: number; readonly line: number } {
  return { file: Math.floor(row / MAX_LINES), line: row % MAX_LINES };
}
