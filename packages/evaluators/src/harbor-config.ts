import { type FloeError, fieldError, parseAs } from '@floe-rl/core';
import { imageUserSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { scriptFailureSchema } from './script-config.ts';

const PATH = 'evaluator.config';

const sandboxPath = z
  .string()
  .min(1)
  .max(4_000)
  .refine((path) => !path.includes('\0'), 'must not contain a NUL byte')
  .refine((path) => !path.split('/').includes('..'), 'must not contain ..')
  .refine((path) => !/^[/.]+$/.test(path), 'must be below the root');
const sandboxFolder = sandboxPath.refine((path) => path.startsWith('/'), 'must be an absolute path');

/** Name of the test script when the task names none. */
const DEFAULT_SCRIPT = 'test.sh';

const configSchema = z.strictObject({
  tests: z
    .array(z.string().min(1))
    .min(1)
    .max(64)
    .describe(
      "folders and files on the node's host, below one of its upload roots; the content of each folder and each file is copied into `tests_target` when the agent has ended, in this order",
    ),
  script: z
    .string()
    .regex(/^(?!\.\.?$)[^/\0]+$/, 'must be the name of a file')
    .default(DEFAULT_SCRIPT)
    .describe('file in `tests_target` that `bash` runs in the workdir'),
  test_command: z
    .string()
    .min(1)
    .refine((command) => !/^\s*-|\0/.test(command), 'must not begin with "-" or contain a NUL byte')
    .nullable()
    .default(null)
    .describe('command that `bash -c` runs in the workdir in place of the script, with all tests made executable'),
  tests_target: sandboxFolder.default('/tests').describe('folder of the sandbox that the tests are copied into'),
  verifier_dir: sandboxFolder
    .default('/logs/verifier')
    .describe('folder of the sandbox that the script writes its rewards into; it is emptied before the script runs'),
  timeout: z.number().gt(0).default(600).describe('time limit of the script in seconds'),
  user: imageUserSchema
    .nullable()
    .default(null)
    .describe('user of the image that runs the script; null for root, or for the only user of the sandbox'),
  grading: z
    .enum(['reward_file', 'pytest_summary', 'polar'])
    .default('reward_file')
    .describe(
      '`reward_file`: the script writes reward.json or reward.txt into `verifier_dir`; `pytest_summary`: 1 when every test in the summary of pytest passed, else 0; `polar`: the files as Polar reads them, and 0 when the script fails',
    ),
  artifacts: z
    .array(sandboxPath)
    .max(64)
    .default([])
    .describe(
      "files and folders of the agent that the script gets in a fresh runtime; relative paths are below the workdir. Empty: the script runs in the agent's runtime",
    ),
  collect: z
    .array(
      z.strictObject({
        command: z.string().min(1),
        timeout: z.number().gt(0).default(60).describe('time limit in seconds'),
      }),
    )
    .max(64)
    .default([])
    .describe("commands that run in the agent's runtime before the artifacts are copied"),
  agent_failures: z
    .array(scriptFailureSchema)
    .default([])
    .describe(
      'failures in a fresh runtime that the agent can cause, which are a reward of 0; any other failure there ends as verifier_error',
    ),
});

export type HarborEvaluatorConfig = z.output<typeof configSchema>;

/**
 * Parses the configuration of the evaluator `harbor`. `fresh` is whether it runs in a fresh runtime. Throws `schema_violation` with a message
 * that names the field when a field is invalid or would have no effect.
 */
export function parseHarborConfig(config: Readonly<Record<string, unknown>>, fresh: boolean): HarborEvaluatorConfig {
  const parsed = parseAs(configSchema, config, PATH, PATH);
  if (parsed.test_command !== null && parsed.script !== DEFAULT_SCRIPT)
    throw invalid('script', 'has no effect with test_command');
  if (fresh && parsed.artifacts.length === 0)
    throw invalid('artifacts', 'must name what crosses into the fresh runtime');
  if (fresh) return parsed;
  const withoutEffect = (['artifacts', 'collect', 'agent_failures'] as const).find((field) => parsed[field].length > 0);
  if (withoutEffect !== undefined) throw invalid(withoutEffect, 'has an effect only in a fresh runtime');
  return parsed;
}

/** Whether the script runs in a fresh runtime when the task does not state it. It does when the task declares files to copy there. */
export function carriesArtifacts({ artifacts }: Readonly<Record<string, unknown>>): boolean {
  return Array.isArray(artifacts) && artifacts.length > 0;
}

function invalid(field: string, message: string): FloeError {
  return fieldError(`${PATH}.${field}`, message);
}
