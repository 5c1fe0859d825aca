import { shellWord } from '@floe-rl/core';
import { z } from 'zod';

/** Schema of one argument of a command. The argument is quoted before it is written to a script, so that the shell never interprets it. */
export const argumentSchema = z
  .string()
  .min(1)
  .max(4096)
  .regex(/^[^\p{Cc}\u2028\u2029]*$/u, 'must be one line without control characters');

/** Schema of an absolute path without characters that Slurm or a shell interprets, such as `%` and quotes. */
export const pathSchema = z
  .string()
  .max(1024)
  .regex(
    /^\/[A-Za-z0-9_.@+=/-]*$/,
    'must be an absolute path of letters, digits and "_", ".", "@", "+", "=", "-", "/"',
  );

/** Schema of a name that becomes part of ids, file names and Slurm job names. */
export const nameSchema = z
  .string()
  .regex(/^[a-z][a-z0-9-]{0,31}$/, 'must be 1 to 32 of lower-case letters, digits and "-", starting with a letter');

export const portSchema = z.int().min(1).max(65_535);

/** Quotes an argument so that the shell uses it literally. */
export function quoteArgument(argument: string): string {
  return /^[A-Za-z0-9_.,:=+@%/-]+$/.test(argument) ? argument : shellWord(argument);
}

/**
 * Quotes an argument in which `{name}` stands for the shell variable `name`, for the given names only. All other text is literal:
 * `--port={port}` becomes `--port="$port"`.
 */
export function quoteTemplate(argument: string, names: readonly string[]): string {
  const parts = argument.split(/(\{[a-z_]+\})/).filter((part) => part !== '');
  const quoted = parts.map((part) =>
    names.includes(part.slice(1, -1)) ? `"$${part.slice(1, -1)}"` : quoteArgument(part),
  );
  return quoted.join('') || "''";
}
