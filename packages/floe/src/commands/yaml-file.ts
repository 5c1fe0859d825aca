import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { FloeError, parseAs } from '@floe-rl/core';
import { type EvaluatorSpec, type PrepareAction, type TaskRequest, taskRequestSchema } from '@floe-rl/core/schema';
import { parseDocument } from 'yaml';
import type { z } from 'zod';

/** Maximum number of YAML aliases in a file. With aliases, a short file could expand to any size. */
const MAX_ALIAS_COUNT = 100;

/**
 * Reads a YAML or JSON file and parses it with a schema. Throws `setup_failed` when the file cannot be read, `malformed_json` when it is
 * neither YAML nor JSON, and `schema_violation` with the path of every invalid field.
 */
export async function readYamlFile<T extends z.ZodType>(path: string, schema: T): Promise<z.output<T>> {
  const text = await readFile(path, 'utf8').catch((cause) => {
    throw new FloeError('setup_failed', `cannot read ${path}: ${cause.message}`, { path }, cause);
  });
  return parseAs(schema, parseYaml(text, path), path);
}

/**
 * Reads a task from a YAML or JSON file. Relative paths of files to upload are resolved from the folder of the file. Throws the errors of
 * `readYamlFile`.
 */
export async function readTaskFile(path: string): Promise<TaskRequest> {
  return withSources(await readYamlFile(path, taskRequestSchema), path);
}

/** Returns a task from a file with absolute paths of the files to upload and of Harbor tests, which are relative to the folder of the file. */
export function withSources(task: TaskRequest, path: string): TaskRequest {
  const folder = dirname(resolve(path));
  const { runtime, evaluator } = task;
  const resolved = { ...task, evaluator: evaluator === null ? null : withTests(evaluator, folder) };
  if (runtime === null) return resolved;
  return {
    ...resolved,
    runtime: {
      ...runtime,
      prepare: runtime.prepare.map((action) => resolveSource(action, folder)),
      eval_prepare: runtime.eval_prepare?.map((action) => resolveSource(action, folder)) ?? null,
    },
  };
}

/** Returns the evaluator with absolute paths of the files and folders that `harbor` copies from the node's host. */
function withTests(evaluator: EvaluatorSpec, folder: string): EvaluatorSpec {
  const { strategy, config } = evaluator;
  if (strategy !== 'harbor' || !Array.isArray(config.tests)) return evaluator;
  const tests = config.tests.map((test) => (typeof test === 'string' ? resolve(folder, test) : test));
  return { ...evaluator, config: { ...config, tests } };
}

function parseYaml(text: string, path: string): unknown {
  try {
    const document = parseDocument(text);
    // A value with an unknown tag causes only a warning, and would be read as if it had no tag.
    const [problem] = [...document.errors, ...document.warnings];
    if (problem !== undefined) throw problem;
    return document.toJS({ maxAliasCount: MAX_ALIAS_COUNT });
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new FloeError('malformed_json', `${path} is neither YAML nor JSON: ${reason}`, { path }, cause);
  }
}

function resolveSource(action: PrepareAction, folder: string): PrepareAction {
  if (action.type !== 'upload_file' && action.type !== 'upload_dir') return action;
  return { ...action, source: resolve(folder, action.source) };
}
