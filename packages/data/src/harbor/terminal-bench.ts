import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import { environmentSchema } from '@floe-rl/core/schema';
import { parse } from 'yaml';
import { z } from 'zod';
import type { HarborTask, ImageSource } from './task.ts';
import { isFile, isFolder, missingFile, parseFile, unsupported } from './task-file.ts';

const seconds = z.number().gt(0);

/** The file `task.yaml` of Terminal-Bench. */
const taskSchema = z.strictObject({
  instruction: z.string().min(1),
  author_name: z.string().default('unknown'),
  author_email: z.string().default('unknown'),
  difficulty: z.string().default('unknown'),
  category: z.string().default('software_engineering'),
  tags: z.array(z.string()).default([]),
  parser_name: z.string().default('pytest'),
  max_agent_timeout_sec: seconds.default(360),
  max_test_timeout_sec: seconds.default(60),
  run_tests_in_same_shell: z.boolean().default(false),
  disable_asciinema: z.boolean().default(false),
  estimated_duration_sec: z.number().nullish(),
  expert_time_estimate_min: z.number().nullish(),
  junior_time_estimate_min: z.number().nullish(),
});

const serviceSchema = z.strictObject({
  build: z
    .union([
      z.string().transform((context) => ({ context, dockerfile: 'Dockerfile' })),
      z.strictObject({ context: z.string().default('.'), dockerfile: z.string().default('Dockerfile') }),
    ])
    .optional(),
  image: z.string().optional(),
  container_name: z.string().optional(),
  command: z.unknown().optional(),
  volumes: z.array(z.string()).default([]),
  environment: z
    .union([
      z.array(z.string()).transform((entries) => Object.fromEntries(entries.map(nameAndValue))),
      z.record(z.string(), z.coerce.string()),
    ])
    .pipe(environmentSchema)
    .default({}),
  working_dir: z.string().optional(),
});

/** The file `docker-compose.yaml` of Terminal-Bench. */
const composeSchema = z.strictObject({
  version: z.unknown().optional(),
  services: z.record(z.string(), z.record(z.string(), z.unknown())),
});

/** One entry of `solution.yaml`: keys that are typed into a terminal. */
const commandSchema = z.strictObject({
  command: z.string(),
  min_timeout_sec: z.number().optional(),
  max_timeout_sec: z.number().optional(),
  block: z.boolean().default(false),
  append_enter: z.boolean().default(true),
});

/** Variables of Terminal-Bench that have the same meaning in every task. */
const OWN_VARIABLES = new Set(['TEST_DIR']);
/** Matches the volumes that Terminal-Bench mounts for its own logs. */
const OWN_VOLUME = /^\$\{T_BENCH_[A-Z_]*LOGS_PATH\}:\$\{T_BENCH_[A-Z_]*LOGS_PATH\}$/;

/** Reads a task folder of Terminal-Bench: `task.yaml`, `docker-compose.yaml` or `Dockerfile`, `run-tests.sh`, `tests/` and a solution. */
export async function loadTerminalBenchTask(dir: string): Promise<HarborTask> {
  const file = join(dir, 'task.yaml');
  const task = await readYaml(file, taskSchema);
  if (task.parser_name !== 'pytest')
    throw unsupported(file, 'parser_name', `is ${task.parser_name}; floe reads pytest's summary`);
  if (task.run_tests_in_same_shell) {
    throw unsupported(file, 'run_tests_in_same_shell', 'every process of the agent ends before the tests run');
  }
  const runTests = join(dir, 'run-tests.sh');
  if (!(await isFile(runTests))) throw missingFile(runTests, 'it runs the tests of the task');
  const tests = join(dir, 'tests');
  const container = await containerOf(dir);
  return {
    name: basename(dir),
    dir,
    file,
    instruction: task.instruction,
    ...container,
    buildSeconds: 600,
    network: 'unstated',
    allowedHosts: [],
    limits: { cpus: null, memoryMb: null, storageMb: null },
    agentUser: null,
    healthchecks: [],
    mcpServers: [],
    skillsDir: null,
    workdirFiles: null,
    agentSeconds: task.max_agent_timeout_sec,
    artifacts: [],
    verifier: {
      tests: [...((await isFolder(tests)) ? [tests] : []), runTests],
      script: 'run-tests.sh',
      grading: 'pytest_summary',
      seconds: task.max_test_timeout_sec,
      env: { TEST_DIR: '/tests' },
      user: null,
      carried: null,
      environment: null,
      collect: [],
    },
    solution: await solutionOf(dir),
    steps: [],
    stepReward: 'mean',
    metadata: { difficulty: task.difficulty, category: task.category, tags: task.tags },
  };
}

async function containerOf(dir: string): Promise<Pick<HarborTask, 'image' | 'env' | 'workdir'>> {
  const file = join(dir, 'docker-compose.yaml');
  if (!(await isFile(file))) return { image: await buildOf(dir, '.', 'Dockerfile'), env: {}, workdir: null };
  const { services } = await readYaml(file, composeSchema);
  const [first, ...others] = Object.entries(services);
  if (first === undefined || others.length > 0) {
    const names = Object.keys(services).join(', ');
    throw unsupported(file, 'services', `has ${names || 'none'}; floe runs one container for each session`);
  }
  const [name, fields] = first;
  const known = Object.keys(serviceSchema.shape);
  const unknown = Object.keys(fields).find((key) => !known.includes(key));
  if (unknown !== undefined) throw unsupported(file, `services.${name}.${unknown}`, 'has no counterpart in floe');
  const { build, image, volumes, environment, working_dir } = parseFile(serviceSchema, fields, file, () => null);
  const volume = volumes.find((entry) => !OWN_VOLUME.test(entry));
  if (volume !== undefined)
    throw unsupported(file, `services.${name}.volumes`, `has ${volume}; sandboxes see no files of the host`);
  const isReference = build === undefined && image !== undefined && !image.includes('${');
  return {
    image: isReference
      ? { kind: 'reference', reference: image }
      : await buildOf(dir, build?.context ?? '.', build?.dockerfile ?? 'Dockerfile'),
    env: Object.fromEntries(Object.entries(environment).filter(([variable]) => !OWN_VARIABLES.has(variable))),
    workdir: working_dir === undefined || working_dir.includes('${') ? null : working_dir,
  };
}

async function buildOf(dir: string, folder: string, dockerfile: string): Promise<ImageSource> {
  const context = join(dir, folder);
  const path = join(context, dockerfile);
  if (!(await isFile(path))) throw missingFile(path, 'the image of the task is made from it');
  return { kind: 'build', context, dockerfile };
}

async function solutionOf(dir: string): Promise<HarborTask['solution']> {
  const script = await readFile(join(dir, 'solution.sh'), 'utf8').catch(() => null);
  if (script !== null) return { dir: null, text: script, env: {} };
  const file = join(dir, 'solution.yaml');
  if (!(await isFile(file))) return null;
  const commands = await readYaml(file, z.array(commandSchema));
  const keys = commands.findIndex(({ append_enter }) => !append_enter);
  if (keys >= 0) throw unsupported(file, `${keys}.append_enter`, 'is false: the solution types into a running program');
  return { dir: null, text: commands.map(({ command }) => `${command}\n`).join(''), env: {} };
}

async function readYaml<T extends z.ZodType>(file: string, schema: T): Promise<z.output<T>> {
  const text = await readFile(file, 'utf8').catch((cause) => {
    throw new FloeError('setup_failed', `cannot read ${file}: ${cause.message}`, { file }, cause);
  });
  const lines = text.split('\n');
  return parseFile(schema, parseYaml(text, file), file, ([key]) => {
    const index = lines.findIndex((line) => line.startsWith(`${String(key)}:`));
    return index < 0 ? null : index + 1;
  });
}

function parseYaml(text: string, file: string): unknown {
  try {
    return parse(text, { maxAliasCount: 100 });
  } catch (cause) {
    const [reason] = (cause as Error).message.split('\n');
    throw new FloeError('schema_violation', `${file}: ${reason}`, { file }, cause);
  }
}

function nameAndValue(entry: string): [string, string] {
  const [name = '', ...value] = entry.split('=');
  return [name, value.join('=')];
}
