import { asFloeError, parseJson } from '@floe-rl/core';
import { invalidRow, type Row } from '@floe-rl/core/rows';
import { type RuntimeBackend, type TaskRequest, type TaskRequestInput, taskRequestSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Architecture, sweBenchImage, sweGymImage } from './images.ts';

/** Data sets whose rows are a repository, an issue and hidden tests. */
export const SWE_DATASETS = ['swebench', 'swe-gym', 'r2e-gym', 'skyrl-v0'] as const;
export type SweDataset = (typeof SWE_DATASETS)[number];

export type SweTaskOptions = {
  readonly agent: TaskRequestInput['agent'];
  readonly backend: RuntimeBackend;
  readonly architecture: Architecture;
  /** Registry or namespace of the images; `null` for the published images. */
  readonly imageNamespace: string | null;
  /** Text of the instruction, in which `{problem_statement}` and `{repo}` are replaced; `null` for the default. */
  readonly template: string | null;
  /** Fields that rows may have in addition to the fields of the data set. They are ignored. */
  readonly ignoredFields: readonly string[];
};

const DEFAULT_TEMPLATE = `The repository {repo} is in /testbed. Change its code so that the following issue is resolved. Do not change tests.

{problem_statement}
`;
/** Directory of the repository in the images of all these data sets. */
const REPOSITORY = '/testbed';
/** Time limits in seconds of the agent and of the tests. */
const AGENT_SECONDS = 1_800;
const TEST_SECONDS = 1_800;
const INIT_SECONDS = 600;
/** Memory and disk of a sandbox in MiB, which the tests of larger repositories need. */
const MEMORY_MB = 8_192;
const STORAGE_MB = 8_192;
/** Command that hides the tests of R2E-Gym from the agent. */
const HIDE_R2E_TESTS = 'rm -rf /r2e_tests /root/r2e_tests /root/run_tests.sh r2e_tests run_tests.sh';

const text = z.string().min(1);
const tests = z.union([z.array(z.string()), z.string()]);

/** Fields that the evaluator `swebench` reads. The other fields of a row, such as the solution, are not copied to the task. */
const gradedFields = {
  instance_id: text,
  repo: text,
  base_commit: text,
  version: z.string().nullish(),
  test_patch: text,
  FAIL_TO_PASS: tests,
  PASS_TO_PASS: tests,
  log_parser: z.string().nullish(),
  eval_type: z.string().nullish(),
  eval_script: z.string().nullish(),
  image_assets: z.unknown().optional(),
};
const GRADED = Object.keys(gradedFields);

const sweRowSchema = z.strictObject({
  ...gradedFields,
  problem_statement: text,
  // Published fields that a task does not need.
  ...Object.fromEntries(
    [
      ...['patch', 'hints_text', 'created_at', 'environment_setup_commit', 'difficulty', 'language', 'image_name'],
      ...['docker_image', 'install_config', 'requirements', 'environment', 'data_source', 'prompt', 'ability'],
    ].map((name) => [name, z.unknown().optional()]),
  ),
});

const r2eRowSchema = z.strictObject({
  repo_name: text,
  docker_image: text,
  commit_hash: text,
  problem_statement: text,
  expected_output_json: z.union([text, z.record(z.string(), z.string())]),
  ...Object.fromEntries(
    [
      ...['parsed_commit_content', 'execution_result_content', 'modified_files', 'modified_entity_summaries'],
      ...['relevant_files', 'num_non_test_files', 'num_non_test_func_methods', 'num_non_test_lines', 'prompt'],
      ...['instance_id', 'data_source', 'ability', 'repo', 'base_commit'],
    ].map((name) => [name, z.unknown().optional()]),
  ),
});

/**
 * Converts a row of a data set to a task that the evaluator `swebench` grades in the published image of the row. Throws `schema_violation`
 * with the row and the field when a field is missing, unknown or invalid.
 */
export function sweTask(dataset: SweDataset, row: Row, options: SweTaskOptions): TaskRequest {
  if (dataset === 'skyrl-v0') return skyrlTask(row, options);
  return dataset === 'r2e-gym' ? r2eTask(row, options) : sweBenchTask(dataset, row, options);
}

/** Converts a row of SkyRL-v0, which has a row of another data set in `instance`, and in `data_source` the name of that data set. */
function skyrlTask(row: Row, options: SweTaskOptions): TaskRequest {
  const { instance = row.fields, data_source: source = 'swe-gym' } = row.fields;
  const inner = typeof instance === 'string' ? jsonOf(instance, row.where) : instance;
  if (typeof inner !== 'object' || inner === null)
    throw invalidRow(row.where, 'instance: is not an object', 'instance');
  const dataset = datasetOf(String(source), row.where);
  return sweTask(dataset, { where: row.where, fields: inner as Record<string, unknown> }, options);
}

function datasetOf(source: string, where: string): Exclude<SweDataset, 'skyrl-v0'> {
  const name = source.toLowerCase().replaceAll(/[^a-z0-9]/g, '');
  if (name.includes('r2e')) return 'r2e-gym';
  if (name.includes('swebench')) return 'swebench';
  if (name.includes('swegym')) return 'swe-gym';
  throw invalidRow(where, `data_source: ${source} is none of SWE-Gym, SWE-bench, R2E-Gym`, 'data_source');
}

function sweBenchTask(dataset: 'swebench' | 'swe-gym', row: Row, options: SweTaskOptions): TaskRequest {
  const fields = checkedRow(sweRowSchema, row, options);
  const { instance_id: id, repo, problem_statement } = fields;
  const namespace = options.imageNamespace ?? undefined;
  const image =
    dataset === 'swebench' ? sweBenchImage(id, options.architecture, namespace) : sweGymImage(id, namespace);
  const instance = Object.fromEntries(
    Object.entries(fields).filter(([name, value]) => GRADED.includes(name) && value != null),
  );
  return taskOf(row, options, {
    ...{ dataset, id, repo, problem: problem_statement, image },
    hide: null,
    config: { instance, test_timeout: TEST_SECONDS },
  });
}

function r2eTask(row: Row, options: SweTaskOptions): TaskRequest {
  const fields = checkedRow(r2eRowSchema, row, options);
  const { repo_name: repo, commit_hash, docker_image, problem_statement, expected_output_json } = fields;
  const name = docker_image.split('/').at(-1) ?? docker_image;
  return taskOf(row, options, {
    ...{ dataset: 'r2e-gym' as const, id: `${repo}-${commit_hash}`, repo, problem: problem_statement },
    image: options.imageNamespace === null ? docker_image : `${options.imageNamespace}/${name}`,
    hide: HIDE_R2E_TESTS,
    // The agent's copy lacks these tests. Their absence must not look like a change of the agent.
    config: {
      instance: { expected_output_json },
      test_timeout: TEST_SECONDS,
      exclude_patterns: ['run_tests.sh', 'r2e_tests'],
    },
  });
}

type Parts = {
  readonly dataset: SweDataset;
  readonly id: string;
  readonly repo: string;
  readonly problem: string;
  readonly image: string;
  /** Command that runs in the agent's sandbox only, before the agent; `null` for none. */
  readonly hide: string | null;
  readonly config: Record<string, unknown>;
};

function taskOf(row: Row, options: SweTaskOptions, parts: Parts): TaskRequest {
  const { dataset, id, repo, problem, image, hide, config } = parts;
  const template = options.template ?? DEFAULT_TEMPLATE;
  const values: Readonly<Record<string, string>> = { problem_statement: problem, repo };
  const request: TaskRequestInput = {
    instruction: template.replaceAll(/\{(problem_statement|repo)\}/g, (_match, name: string) => values[name] ?? ''),
    duration_key: id.slice(0, 256),
    timeout_seconds: INIT_SECONDS + AGENT_SECONDS,
    budgets: { init: INIT_SECONDS, agent: AGENT_SECONDS, eval: TEST_SECONDS + INIT_SECONDS },
    agent: options.agent,
    runtime: {
      ...{ backend: options.backend, image, workdir: REPOSITORY, memory_mb: MEMORY_MB, storage_mb: STORAGE_MB },
      prepare: [{ type: 'prune_git_history' }, ...(hide === null ? [] : [{ type: 'exec' as const, command: hide }])],
      eval_prepare: [],
    },
    evaluator: { strategy: 'swebench', config },
    metadata: { dataset, instance_id: id, repo },
  };
  const parsed = taskRequestSchema.safeParse(request);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw invalidRow(row.where, `${issue?.path.join('.')}: ${issue?.message}`, issue?.path.join('.') ?? null);
}

function checkedRow<T extends z.ZodType>(schema: T, row: Row, { ignoredFields }: SweTaskOptions): z.output<T> {
  const kept = Object.entries(row.fields).filter(([name]) => !ignoredFields.includes(name));
  const parsed = schema.safeParse(Object.fromEntries(kept));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  if (issue?.code === 'unrecognized_keys') {
    const [field = ''] = issue.keys;
    throw invalidRow(row.where, `${field}: is no field of this data set; --ignore-fields ${field} accepts it`, field);
  }
  const field = issue?.path.map(String).join('.') ?? '';
  const message = row.fields[field] === undefined ? 'is missing' : issue?.message;
  throw invalidRow(row.where, `${field}: ${message}`, field);
}

function jsonOf(value: string, where: string): unknown {
  try {
    return parseJson(value);
  } catch (cause) {
    throw invalidRow(where, `instance: is not JSON: ${asFloeError(cause).message}`, 'instance');
  }
}
