import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { countOption } from './options.ts';
import { printJson, printLine } from './print.ts';
import { watchTask } from './watch.ts';
import { readTaskFile } from './yaml-file.ts';

type Options = ConnectionOptions & { samples?: string; taskId?: string; watch?: boolean };

export function registerSubmit(program: Command): void {
  withConnectionOptions(
    program
      .command('submit <file>')
      .description('submit a task from a YAML or JSON file')
      .option('--samples <n>', 'value that overrides num_samples')
      .option('--task-id <id>', 'value that overrides task_id')
      .option('--watch', 'print the progress of the task until it ends'),
  ).action(async (file: string, options: Options) => {
    const task = await readTaskFile(file);
    if (options.samples !== undefined) task.num_samples = countOption('--samples', options.samples);
    if (options.taskId !== undefined) task.task_id = options.taskId;
    await withClient(options, async (client) => {
      const reply = await client.submit(task);
      if (options.json) printJson(reply);
      else
        printLine(
          `task ${reply.task_id}: ${reply.session_ids.length} sessions${reply.duplicate ? ' (was submitted before)' : ''}`,
        );
      if (options.watch) await watchTask(client, reply.task_id, options.json === true);
      else if (!options.json) printLine(`Follow it with: floe watch ${reply.task_id}`);
    });
  });
}
