import { readFile } from 'node:fs/promises';
import { parse } from 'yaml';
import type { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';

/**
 * Reads a YAML or JSON file. Throws `setup_failed` when it cannot be read, `malformed_json` for bad YAML, `schema_violation`
 * with the path of every wrong field.
 */
export async function readYamlFile<T extends z.ZodType>(path: string, schema: T): Promise<z.output<T>> {
  const text = await readFile(path, 'utf8').catch((cause) => {
    throw new FloeError('setup_failed', `cannot read ${path}: ${cause.message}`, { path }, cause);
  });
  let value: unknown;
  try {
    // Aliases can blow a short file up to any size; nobody needs that many.
    value = parse(text, { maxAliasCount: 100 });
  } catch (cause) {
    throw new FloeError('malformed_json', `${path} is not YAML: ${(cause as Error).message}`, { path }, cause);
  }
  return parseAs(schema, value, path);
}
