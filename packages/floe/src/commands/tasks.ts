import { readFile } from 'node:fs/promises';
import { FloeError } from '@floe-rl/core';
import { invalidRow, readRows } from '@floe-rl/core/rows';
import type { TaskRequest } from '@floe-rl/core/schema';
import {
  ARCHITECTURES,
  type Architecture,
  SWE_DATASETS,
  type SweDataset,
  type SweTaskOptions,
  sweTask,
} from '@floe-rl/data';
import { evaluatorRegistry } from '@floe-rl/evaluators';
import { type Command, Option } from 'commander';
import { type AgentOptions, agentOf, withAgentOptions } from './agent-options.ts';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { type HarborTaskOptions, loadTasks, withHarborTaskOptions } from './harbor-tasks.ts';
import { interruptible } from './lifetime.ts';
import { countOption } from './options.ts';
import { printJson, printLine } from './print.ts';
import { watchTask } from './watch.ts';

type Options = AgentOptions &
  HarborTaskOptions &
  ConnectionOptions & {
    dataset: SweDataset | 'harbor' | 'terminal-bench';
    samples: string;
    limit?: string;
    instance: string[];
    architecture: Architecture;
    imageNamespace?: string;
    template?: string;
    ignoreFields: string[];
    submit?: boolean;
    watch?: boolean;
  };

export function registerTasks(program: Command): void {
  const tasks = program.command('tasks').description('make tasks of published data sets');
  const datasets = new Option('--dataset <name>', 'data set').choices([...SWE_DATASETS, 'harbor', 'terminal-bench']);
  const command = tasks
    .command('from-rows <path>')
    .description('print the tasks of a JSONL or JSON file of rows, or of a folder of Harbor tasks, one per line')
    .addOption(datasets.makeOptionMandatory());
  withConnectionOptions(withHarborTaskOptions(withAgentOptions(command)))
    .option('-n, --samples <n>', 'num_samples of each task', '1')
    .option('--limit <n>', 'maximum number of tasks')
    .option('--instance <id...>', 'only the rows with these ids', [])
    .option('--image-namespace <name>', 'registry and namespace of the images, instead of the published ones')
    .addOption(new Option('--architecture <name>', 'processors of the images').choices(ARCHITECTURES).default('x86_64'))
    .option('--template <file>', 'text of the instruction, with {problem_statement} and {repo}')
    .option('--ignore-fields <name...>', 'fields of rows that the data set does not have', [])
    .option('--submit', 'submit the tasks to the server instead of printing them')
    .option('--watch', 'print the progress of the submitted tasks until they end')
    .action(fromRows);
}

async function fromRows(path: string, options: Options): Promise<void> {
  if (options.watch === true && options.submit !== true) throw new FloeError('bad_request', '--watch needs --submit');
  const samples = countOption('--samples', options.samples);
  const limit = options.limit === undefined ? Number.POSITIVE_INFINITY : countOption('--limit', options.limit);
  const tasks: TaskRequest[] = [];
  const done = await interruptible(async (signal) => {
    for await (const task of tasksOf(path, options, signal)) {
      if (tasks.length === limit) break;
      tasks.push({ ...task, num_samples: samples });
    }
    return true;
  });
  if (done === null) return;
  if (tasks.length === 0) throw new FloeError('bad_request', `${path} has no row that the options select`);
  if (options.submit !== true) {
    for (const task of tasks) printJson(task);
    return;
  }
  await withClient(options, async (client) => {
    const submitted: string[] = [];
    for (const task of tasks) {
      const { task_id, session_ids } = await client.submit(task);
      submitted.push(task_id);
      if (options.json === true) printJson({ task_id, instance_id: task.metadata.instance_id ?? null });
      else printLine(`task ${task_id}: ${session_ids.length} sessions, ${task.duration_key}`);
    }
    if (options.watch === true) for (const taskId of submitted) await watchTask(client, taskId, options.json === true);
  });
}

async function* tasksOf(path: string, options: Options, signal: AbortSignal): AsyncGenerator<TaskRequest> {
  const agent = await agentOf(options);
  const { dataset } = options;
  if (dataset === 'harbor' || dataset === 'terminal-bench') {
    for (const { task } of await loadTasks(path, agent, options, signal)) yield task;
    return;
  }
  const { backend, architecture, imageNamespace = null, ignoreFields: ignoredFields } = options;
  const template = options.template === undefined ? null : await templateOf(options.template);
  const settings: SweTaskOptions = { agent, backend, architecture, imageNamespace, template, ignoredFields };
  const evaluators = evaluatorRegistry();
  for await (const row of readRows(path)) {
    signal.throwIfAborted();
    const task = sweTask(dataset, row, settings);
    if (options.instance.length > 0 && !options.instance.includes(String(task.metadata.instance_id))) continue;
    try {
      if (task.evaluator !== null) evaluators.check(task.evaluator);
    } catch (thrown) {
      if (!FloeError.is(thrown)) throw thrown;
      throw invalidRow(row.where, thrown.message.replaceAll(/evaluator\.config\.(instance\.)?/g, ''));
    }
    yield task;
  }
}

async function templateOf(path: string): Promise<string> {
  const template = await readFile(path, 'utf8').catch((cause: Error) => {
    throw new FloeError('setup_failed', `cannot read ${path}: ${cause.message}`, { file: path }, cause);
  });
  if (template.includes('{problem_statement}')) return template;
  throw new FloeError('bad_request', `--template: ${path} has no {problem_statement}`);
}
