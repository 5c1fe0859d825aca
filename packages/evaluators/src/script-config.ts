import { type FloeError, fieldError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { relativePathSchema } from './carried-paths.ts';
import { checkPatterns, patchFields } from './patch-config.ts';

const PATH = 'evaluator.config';
/** Maximum number of files that a task may write into the runtime for its evaluator. */
const MAX_FILES = 256;

/** Failures of a script, which a task may declare to be caused by the agent. */
export const scriptFailureSchema = z.enum(['timeout', 'exit_code', 'no_reward', 'invalid_reward']);
export type ScriptFailure = z.infer<typeof scriptFailureSchema>;

/** Files that an evaluator writes into the runtime after the agent's files, so that they replace files of the agent at the same paths. */
export const hiddenFilesSchema = z
  .record(relativePathSchema, z.string())
  .refine((files) => Object.keys(files).length <= MAX_FILES, `must have at most ${MAX_FILES} files`);

const configSchema = z.strictObject({
  command: z.string().min(1).describe('command that `/bin/sh -c` runs in `repo_dir`'),
  timeout: z.number().gt(0).default(600).describe('time limit of the command in seconds'),
  repo_dir: z.string().min(1).nullable().default(null).describe('path in the sandbox; null for the workdir'),
  carry: z
    .enum(['patch', 'paths', 'none'])
    .nullable()
    .default(null)
    .describe(
      "how the agent's files cross into the fresh runtime: as a git patch, as the files in `paths`, or not; null: patch",
    ),
  paths: z
    .array(relativePathSchema)
    .max(64)
    .default([])
    .describe('files and folders below `repo_dir` that cross into the fresh runtime with `carry: paths`'),
  ...patchFields,
  files: hiddenFilesSchema
    .default({})
    .describe("content of files below `repo_dir` that are written after the agent's files, by path"),
  agent_failures: z
    .array(scriptFailureSchema)
    .default([])
    .describe('failures that the agent can cause, which are a reward of 0; any other failure ends as verifier_error'),
});

export type ScriptConfig = z.output<typeof configSchema>;

/**
 * Parses the configuration of the evaluator `script`. `fresh` is whether it runs in a fresh runtime. Throws `schema_violation` with a message
 * that names the field when a field is invalid or would have no effect.
 */
export function parseScriptConfig(config: Readonly<Record<string, unknown>>, fresh: boolean): ScriptConfig {
  const parsed = parseAs(configSchema, config, PATH, PATH);
  checkPatterns(parsed);
  const { carry, paths, patch_command, exclude_patterns } = parsed;
  if (!fresh && carry !== null)
    throw invalid('carry', 'needs a fresh runtime, which evaluator.refresh_runtime: false disables');
  if (paths.length > 0 && carry !== 'paths') throw invalid('paths', 'has an effect only with carry: paths');
  if (paths.length === 0 && carry === 'paths') throw invalid('paths', 'must name at least one path with carry: paths');
  const isPatch = fresh && (carry === null || carry === 'patch');
  if (patch_command !== null && !isPatch) throw invalid('patch_command', 'has an effect only with carry: patch');
  if (exclude_patterns.length > 0 && !isPatch)
    throw invalid('exclude_patterns', 'has an effect only with carry: patch');
  return parsed;
}

function invalid(field: string, message: string): FloeError {
  return fieldError(`${PATH}.${field}`, message);
}
