import { type FloeError, fieldError, parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import { checkPatterns, type PatchConfig, patchFields } from '../patch-config.ts';
import { commandsOf, isFailOnly, repositoryOf } from './commands/repositories.ts';
import { scriptForCommand, scriptForVersion, scriptOfRow } from './eval-script.ts';
import type { EvalType, RowTests } from './grading.ts';
import type { RowFacts } from './parsers/log-parser.ts';
import { LOG_PARSER_NAMES, type LogParserName, parserProblem } from './parsers/registry.ts';
import { comparable, R2E_TEST_COMMAND } from './r2e-gym.ts';

const PATH = 'evaluator.config';

const logParserName = z.enum(LOG_PARSER_NAMES);

const configSchema = z.strictObject({
  instance: z.record(z.string(), z.unknown()).describe('a row of SWE-bench, SWE-Gym or R2E-Gym, as published'),
  repo_dir: z
    .string()
    .min(1)
    .nullable()
    .default('/testbed')
    .describe('path of the git repository in the sandbox; null for the workdir'),
  test_command: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe("command that bash runs in `repo_dir`; null uses the row's script, or else the table of test commands"),
  log_parser: logParserName
    .nullable()
    .default(null)
    .describe("parser of the log; null uses the row's, or else the repository's"),
  ...patchFields,
  test_timeout: z.number().gt(0).default(1200).describe('time limit of the tests in seconds'),
  reward_granularity: z
    .enum(['binary', 'pass_rate'])
    .default('binary')
    .describe('`binary`: 1 when the row is resolved, else 0; `pass_rate`: the share of the expected tests that hold'),
});

type Fields = z.output<typeof configSchema>;

const testList = z.union([z.array(z.string()), z.string()]);

/** Fields of a row. Rows have many more, which are ignored. */
const rowSchema = z.looseObject({
  instance_id: z.string().min(1),
  repo: z.string().min(1),
  version: z.string().min(1).nullish(),
  base_commit: z.string().regex(/^[0-9a-f]{7,64}$/i, 'must be the hash of a commit'),
  test_patch: z.string().min(1),
  FAIL_TO_PASS: testList,
  PASS_TO_PASS: testList,
  log_parser: logParserName.nullish(),
  eval_type: z.enum(['pass_and_fail', 'fail_only']).nullish(),
  eval_script: z.string().min(1).nullish(),
  image_assets: z.unknown().optional(),
});

type RowFields = z.output<typeof rowSchema>;

/** How a row of SWE-bench is graded. */
export type SweBenchRow = {
  readonly kind: 'swe_bench';
  readonly facts: RowFacts;
  readonly baseCommit: string;
  readonly testPatch: string;
  readonly tests: RowTests;
  readonly evalType: EvalType;
  readonly parser: LogParserName;
  /** The script that runs the tests. */
  readonly script: string;
  /** Whether the script itself applies the test patch. */
  readonly scriptApplies: boolean;
};

/** How a row of R2E-Gym is graded: the expected status of every test, and the command that runs them. */
export type R2eRow = {
  readonly kind: 'r2e_gym';
  readonly expected: ReadonlyMap<string, string>;
  readonly testCommand: string;
};

export type SweBenchConfig = {
  readonly row: SweBenchRow | R2eRow;
  readonly patch: PatchConfig;
  readonly testTimeoutMs: number;
  readonly granularity: Fields['reward_granularity'];
};

/** Parses the configuration of the evaluator `swebench`. Throws `schema_violation` with a message that names the invalid field. */
export function parseSweBenchConfig(config: Readonly<Record<string, unknown>>): SweBenchConfig {
  const fields = parseAs(configSchema, config, PATH, PATH);
  const { repo_dir, patch_command, apply_timeout, exclude_patterns } = fields;
  const patch = { repo_dir, patch_command, apply_timeout, exclude_patterns };
  checkPatterns(patch);
  const isR2e = fields.instance.expected_output_json !== undefined;
  return {
    row: isR2e ? r2eRow(fields) : sweBenchRow(fields),
    patch,
    testTimeoutMs: fields.test_timeout * 1000,
    granularity: fields.reward_granularity,
  };
}

const statusSchema = z.record(z.string(), z.string()).refine((statuses) => Object.keys(statuses).length > 0, {
  message: 'must name at least one test',
});

function r2eRow({ instance, test_command }: Fields): R2eRow {
  const path = `${PATH}.instance.expected_output_json`;
  const statuses = parseAs(statusSchema, jsonOf(instance.expected_output_json, path), path, path);
  return {
    kind: 'r2e_gym',
    expected: comparable(new Map(Object.entries(statuses))),
    testCommand: test_command ?? R2E_TEST_COMMAND,
  };
}

function sweBenchRow(fields: Fields): SweBenchRow {
  const row = parseAs(rowSchema, fields.instance, PATH, `${PATH}.instance`);
  const facts = { instanceId: row.instance_id, version: row.version ?? '' };
  const parser = fields.log_parser ?? row.log_parser ?? repositoryOf(row.repo)?.parser;
  if (parser === undefined) throw invalid('log_parser', `is needed: the repository ${row.repo} is not in the table`);
  const problem = parserProblem(parser, facts);
  if (problem !== null) throw invalid('instance', problem);
  if (hasTestAssets(row.image_assets)) {
    throw invalid('instance.image_assets', 'has binary files for the tests, which are not supported');
  }
  const tests = { failToPass: testsOf(row, 'FAIL_TO_PASS'), passToPass: testsOf(row, 'PASS_TO_PASS') };
  if (tests.failToPass.length + tests.passToPass.length === 0) {
    throw invalid('instance.FAIL_TO_PASS', 'and PASS_TO_PASS are empty');
  }
  return {
    kind: 'swe_bench',
    facts,
    baseCommit: row.base_commit,
    testPatch: row.test_patch,
    tests,
    evalType: row.eval_type ?? (isFailOnly(row.repo) ? 'fail_only' : 'pass_and_fail'),
    parser,
    ...scriptFor(fields, row),
  };
}

function scriptFor(
  { test_command }: Fields,
  row: RowFields,
): { readonly script: string; readonly scriptApplies: boolean } {
  if (test_command !== null) return { script: scriptForCommand(test_command), scriptApplies: false };
  if (row.eval_script != null) {
    const script = scriptOfRow(row.eval_script);
    if (script === null) throw invalid('instance.eval_script', 'lacks the markers around the tests');
    return { script, scriptApplies: true };
  }
  const repository = repositoryOf(row.repo);
  const version = row.version ?? '';
  const commands = repository === undefined ? undefined : commandsOf(repository, version);
  if (repository === undefined || commands === undefined) {
    const missing = repository === undefined ? `repository ${row.repo}` : `version "${version}" of ${row.repo}`;
    throw invalid('test_command', `is needed: the ${missing} is not in the table of test commands`);
  }
  const tested = { version, testPatch: row.test_patch };
  return { script: scriptForVersion(repository, commands, tested), scriptApplies: false };
}

/** Returns the expected tests of a row. In published rows they are a list or JSON text. */
function testsOf(row: RowFields, field: 'FAIL_TO_PASS' | 'PASS_TO_PASS'): string[] {
  const path = `${PATH}.instance.${field}`;
  return parseAs(z.array(z.string()), jsonOf(row[field], path), path, path);
}

const assetsSchema = z.looseObject({
  test_patch: z.array(z.unknown()).nullish(),
  patch: z.array(z.unknown()).nullish(),
});

/** Whether a row of SWE-bench Multimodal has binary files that belong to the tests or to the solution. */
function hasTestAssets(assets: unknown): boolean {
  if (assets === undefined || assets === null || assets === '') return false;
  const path = `${PATH}.instance.image_assets`;
  const { test_patch, patch } = parseAs(assetsSchema, jsonOf(assets, path), path, path);
  return (test_patch ?? []).length + (patch ?? []).length > 0;
}

/** Parses a value when it is JSON text, and returns any other value unchanged. */
function jsonOf(value: unknown, path: string): unknown {
  if (typeof value !== 'string') return value;
  try {
    return parseJson(value);
  } catch (cause) {
    throw fieldError(path, 'is a string that is not JSON', { cause });
  }
}

function invalid(field: string, message: string): FloeError {
  return fieldError(`${PATH}.${field}`, message);
}
