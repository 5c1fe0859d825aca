import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import { parse } from 'yaml';
import { readTaskFile } from '#floe/commands/yaml-file';
import { loadScenarios, type Scenario } from '#floe/testing/index';
import { repositoryRoot } from '../../tools/repository.ts';

/** A task of the examples whose agent is one of floe. */
export type ExampleTask = { readonly agent: string; readonly file: string; readonly task: TaskRequestInput };

export const EXAMPLES = join(repositoryRoot(), 'examples');

/** Folders of the examples in which the simulated policy always gets the reward 1. */
const FOLDERS = ['agents', 'python', 'search', 'tool-call'];

/** Returns the tasks of these folders whose agents are floe's own, by their paths. */
export function exampleTasks(): Promise<ExampleTask[]> {
  const paths = yamlFiles().filter((path) => {
    const task = parse(readFileSync(path, 'utf8')) as Partial<TaskRequestInput> | null;
    return task?.agent?.harness === 'floe';
  });
  return Promise.all(
    paths.map(async (path) => {
      const task = await readTaskFile(path);
      return { agent: String(task.agent.settings.agent), file: relative(EXAMPLES, path), task };
    }),
  );
}

/** Resolves with how the simulated policy replies in these tasks: the file `scenario.yaml` beside each task. */
export function exampleScenarios(tasks: readonly ExampleTask[]): Promise<Scenario[]> {
  const folders = new Set(tasks.map(({ file }) => dirname(join(EXAMPLES, file))));
  return loadScenarios([...folders].map((folder) => join(folder, 'scenario.yaml')));
}

function yamlFiles(): string[] {
  return FOLDERS.flatMap((folder) =>
    readdirSync(join(EXAMPLES, folder), { recursive: true, encoding: 'utf8' }).map((path) =>
      join(EXAMPLES, folder, path),
    ),
  )
    .filter((path) => /\.ya?ml$/.test(path))
    .sort();
}
