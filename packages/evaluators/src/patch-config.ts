import { FloeError } from '@floe-rl/core';
import { z } from 'zod';

/** Fields of a configuration about how the agent's work is copied to a fresh runtime. */
export const patchFields = {
  patch_command: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe(
      "command that prints the agent's work as a git patch; null takes all changes since the fresh runtime's HEAD",
    ),
  apply_timeout: z
    .number()
    .gt(0)
    .default(60)
    .describe('time limit in seconds of each command that creates or applies the patch'),
  exclude_patterns: z
    .array(z.string().min(1))
    .default([])
    .describe('git path patterns that are removed from the patch; requires a fresh runtime'),
};

const schema = z.strictObject(patchFields);

/** `repo_dir` is the path of the git repository in the sandbox; `null` for the workdir. */
export type PatchConfig = z.output<typeof schema> & { readonly repo_dir: string | null };

/** Throws `schema_violation` for a pattern that git would not treat as a pattern of paths. */
export function checkPatterns({ exclude_patterns }: PatchConfig): void {
  const magic = exclude_patterns.find((pattern) => pattern.startsWith(':'));
  if (magic === undefined) return;
  throw new FloeError('schema_violation', `evaluator.config: exclude_patterns: "${magic}" must not begin with ":"`);
}
