import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { parse } from 'yaml';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import { type PrepareAction, type TaskRequest, taskRequestSchema } from '../schema/index.ts';

/**
 * Reads a task from a YAML or JSON file. Upload sources are relative to the file. Throws `setup_failed` for a file that
 * cannot be read, `malformed_json` for bad YAML, `schema_violation` with the path of every wrong field.
 */
export async function readTaskFile(path: string): Promise<TaskRequest> {
  const text = await readFile(path, 'utf8').catch((cause) => {
    throw new FloeError('setup_failed', `cannot read the task file ${path}: ${cause.message}`, { path }, cause);
  });
  const task = parseAs(taskRequestSchema, parseYaml(text, path), path);
  const base = dirname(resolve(path));
  const { runtime } = task;
  if (runtime === null) return task;
  return {
    ...task,
    runtime: {
      ...runtime,
      prepare: runtime.prepare.map((action) => fromFile(action, base)),
      eval_prepare: runtime.eval_prepare?.map((action) => fromFile(action, base)) ?? null,
    },
  };
}

function parseYaml(text: string, path: string): unknown {
  try {
    return parse(text);
  } catch (cause) {
    throw new FloeError(
      'malformed_json',
      `${path} is neither YAML nor JSON: ${(cause as Error).message}`,
      { path },
      cause,
    );
  }
}

function fromFile(action: PrepareAction, base: string): PrepareAction {
  if (action.type !== 'upload_file' && action.type !== 'upload_dir') return action;
  return { ...action, source: resolve(base, action.source) };
}
