import { fieldError, parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import { granularitySchema } from './granularity.ts';
import { checkPatterns, patchFields } from './patch-config.ts';
import type { TestStatus } from './test-report.ts';

const statusSchema = z.enum(['PASSED', 'FAILED', 'ERROR', 'SKIPPED']);
const expectedSchema = z
  .record(z.string().min(1), statusSchema)
  .refine((expected) => Object.keys(expected).length > 0, 'must name at least one test id');

const configSchema = z.strictObject({
  test_command: z.string().min(1).describe('command that `/bin/sh -c` runs in `repo_dir`'),
  expected_output_json: z
    .union([z.string(), z.record(z.string(), z.unknown())])
    .describe(
      'expected status of each test id, `{"<test id>": "PASSED" | "FAILED" | "ERROR" | "SKIPPED"}`, as an object or as JSON text',
    ),
  repo_dir: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('path of the git repository in the sandbox; null for the workdir'),
  test_timeout: z.number().gt(0).default(1200).describe('time limit of the test command in seconds'),
  ...patchFields,
  reward_granularity: granularitySchema,
});

export type TestConfig = Omit<z.output<typeof configSchema>, 'expected_output_json'> & {
  readonly expected: ReadonlyMap<string, TestStatus>;
};

const EXPECTED_PATH = 'evaluator.config.expected_output_json';

function parseText(text: string): unknown {
  try {
    return parseJson(text);
  } catch (cause) {
    throw fieldError(EXPECTED_PATH, 'is a string that is not JSON', { cause });
  }
}

/** Parses the configuration of the evaluator `test_on_output`. Throws `schema_violation` with a message that names the invalid field. */
export function parseTestConfig(config: Readonly<Record<string, unknown>>): TestConfig {
  const { expected_output_json, ...rest } = parseAs(configSchema, config, 'evaluator.config', 'evaluator.config');
  checkPatterns(rest);
  const value = typeof expected_output_json === 'string' ? parseText(expected_output_json) : expected_output_json;
  const expected = parseAs(expectedSchema, value, EXPECTED_PATH, EXPECTED_PATH);
  return { ...rest, expected: new Map(Object.entries(expected)) };
}
