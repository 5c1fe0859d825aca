import { readdir } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { FloeError } from '@floe-rl/core';
import { loadHarborLayout } from './harbor-layout.ts';
import type { HarborTask } from './task.ts';
import { isFile, missingFile } from './task-file.ts';
import { loadTerminalBenchTask } from './terminal-bench.ts';

/**
 * Reads a task folder in the layout of Harbor or of Terminal-Bench. Rejects with `schema_violation` for an invalid configuration, with
 * `setup_failed` for a missing file, and with `unsupported` for a part that floe cannot run. The messages name the file and the key.
 */
export async function loadHarborTask(folder: string): Promise<HarborTask> {
  const dir = resolve(folder);
  if (await isFile(join(dir, 'task.toml'))) return loadHarborLayout(dir);
  if (await isFile(join(dir, 'task.yaml'))) return loadTerminalBenchTask(dir);
  throw missingFile(join(dir, 'task.toml'), 'a task folder has task.toml (Harbor) or task.yaml (Terminal-Bench)');
}

/** Returns the task folders that a path names: the path itself, or the folders in it. Rejects with `setup_failed` when there are none. */
export async function taskFolders(path: string): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch((cause) => {
    throw new FloeError('setup_failed', `cannot read the folder ${path}: ${cause.message}`, { file: path }, cause);
  });
  const isTask = (dir: string) =>
    Promise.all(['task.toml', 'task.yaml'].map((name) => isFile(join(dir, name)))).then((found) =>
      found.includes(true),
    );
  if (await isTask(path)) return [path];
  const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(path, name));
  const found = await Promise.all(folders.map(async (folder) => ((await isTask(folder)) ? [folder] : [])));
  const tasks = found.flat().sort();
  if (tasks.length > 0) return tasks;
  throw new FloeError('setup_failed', `${path} contains no task folder: none has task.toml or task.yaml`, {
    file: path,
  });
}
