import { fieldError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { relativePathSchema } from './carried-paths.ts';
import { granularitySchema } from './granularity.ts';
import { hiddenFilesSchema } from './script-config.ts';

const PATH = 'evaluator.config';
const MAX_CASES = 1_000;

const solutionSchema = z.strictObject({
  from: z
    .enum(['file', 'last_message'])
    .default('file')
    .describe("where the solution comes from: a file of the agent, or the last code block of the agent's last message"),
  path: relativePathSchema.describe('path of the solution below the workdir, in both runtimes'),
  language: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('with last_message: the language that the code block must name; null accepts any block'),
});

const programSchema = z.strictObject({
  command: z.string().min(1).describe('command that runs the tests and prints `PASSED|FAILED <test id>` lines'),
  files: hiddenFilesSchema.default({}).describe('content of the files of the tests below the workdir, by path'),
  expected: z.array(z.string().min(1)).min(1).max(MAX_CASES).describe('ids of the tests that must pass'),
  timeout: z.number().gt(0).default(60).describe('time limit of the command in seconds'),
});

const configSchema = z.strictObject({
  solution: solutionSchema,
  compile: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('command that prepares the solution; the reward is 0 when it fails'),
  compile_timeout: z.number().gt(0).default(60).describe('time limit of `compile` in seconds'),
  command: z.string().min(1).nullable().default(null).describe('command that runs the solution on one case'),
  cases: z
    .array(z.strictObject({ stdin: z.string().default(''), stdout: z.string() }))
    .min(1)
    .max(MAX_CASES)
    .nullable()
    .default(null)
    .describe('inputs of the solution and the outputs that it must print'),
  compare: z
    .enum(['lines', 'tokens', 'exact'])
    .default('lines')
    .describe(
      'lines: white space at the ends of lines and of the output is ignored; tokens: all differences in white space are; exact: none',
    ),
  time_limit: z.number().gt(0).default(10).describe('time limit of the solution on one case in seconds'),
  memory_mb: z
    .int()
    .min(16)
    .nullable()
    .default(null)
    .describe("limit of the address space of each process on one case in MiB; null: the runtime's own limit only"),
  program: programSchema
    .nullable()
    .default(null)
    .describe('a program that tests the solution, in the place of `cases`'),
  reward_granularity: granularitySchema,
});

type Parsed = z.output<typeof configSchema>;
export type TestProgram = z.output<typeof programSchema>;

/** How a solution is tested: `command` runs it once on each case, or a test program of its own tests it. */
export type CodeTests =
  | { readonly kind: 'cases'; readonly command: string; readonly cases: NonNullable<Parsed['cases']> }
  | { readonly kind: 'program'; readonly program: TestProgram };

export type CodeTestsConfig = Omit<Parsed, 'command' | 'cases' | 'program'> & { readonly tests: CodeTests };

/**
 * Parses the configuration of the evaluator `code_tests`. `fresh` is whether it runs in a fresh runtime. Without a fresh runtime the
 * configuration is refused, because hidden tests would run where the agent can have replaced every program. Throws `schema_violation` with a
 * message that names the invalid field.
 */
export function parseCodeTestsConfig(config: Readonly<Record<string, unknown>>, fresh: boolean): CodeTestsConfig {
  const { command, cases, program, ...rest } = parseAs(configSchema, config, PATH, PATH);
  if (!fresh) throw fieldError('evaluator.refresh_runtime', 'code_tests needs a fresh runtime');
  if ((cases === null) === (program === null)) throw fieldError(`${PATH}.cases`, 'give either cases or program');
  if (rest.solution.language !== null && rest.solution.from === 'file') {
    throw fieldError(`${PATH}.solution.language`, 'has an effect only with from: last_message');
  }
  if (program !== null) {
    if (command !== null) throw fieldError(`${PATH}.command`, 'has an effect only with cases');
    return { ...rest, tests: { kind: 'program', program } };
  }
  if (command === null) throw fieldError(`${PATH}.command`, 'is required with cases');
  return { ...rest, tests: { kind: 'cases', command, cases: cases ?? [] } };
}
