import { z } from 'zod';

/** One argument of a command. Quoted before it gets into a script, so that nothing in it is carried out. */
export const wordSchema = z
  .string()
  .min(1)
  .max(4096)
  .regex(/^[^\p{Cc}\u2028\u2029]*$/u, 'must be one line without control characters');

/** Slurm gives `%` and quotes in its paths a meaning; a path that needs neither is read alike by everything. */
export const pathSchema = z
  .string()
  .max(1024)
  .regex(
    /^\/[A-Za-z0-9_.@+=/-]*$/,
    'must be an absolute path of letters, digits and "_", ".", "@", "+", "=", "-", "/"',
  );

/** Names of clusters, roles and databases become parts of ids, of file names and of Slurm's job names. */
export const nameSchema = z
  .string()
  .regex(/^[a-z][a-z0-9-]{0,31}$/, 'must be 1 to 32 of lower-case letters, digits and "-", starting with a letter');

export const portSchema = z.int().min(1).max(65_535);

/** A word as the shell takes it literally. */
export function quoted(word: string): string {
  return /^[A-Za-z0-9_.,:=+@%/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/**
 * A word in which `{name}` stands for the shell variable of that name, for those names that are given. All else is literal:
 * `--port={port}` becomes `--port="$port"`.
 */
export function templated(word: string, names: readonly string[]): string {
  const pieces = word.split(/(\{[a-z_]+\})/).filter((piece) => piece !== '');
  const shown = pieces.map((piece) =>
    names.includes(piece.slice(1, -1)) ? `"$${piece.slice(1, -1)}"` : quoted(piece),
  );
  return shown.join('') || "''";
}
