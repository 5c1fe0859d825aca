import { readFile } from 'node:fs/promises';
import { FloeError } from '@floe-rl/core';
import { parse, TomlError } from 'smol-toml';
import type { z } from 'zod';
import { type LineFinder, parseFile } from './task-file.ts';

/**
 * Reads a TOML file and parses it with a schema. Throws `setup_failed` for a file that cannot be read, and `schema_violation` for a file that
 * is not TOML or has an invalid value. The messages name the file, the line and the key.
 */
export async function readTomlFile<T extends z.ZodType>(path: string, schema: T): Promise<z.output<T>> {
  const text = await readFile(path, 'utf8').catch((cause) => {
    throw new FloeError('setup_failed', `cannot read ${path}: ${cause.message}`, { file: path }, cause);
  });
  return parseFile(schema, parseToml(text, path), path, lineFinder(text));
}

function parseToml(text: string, file: string): unknown {
  try {
    return parse(text);
  } catch (cause) {
    if (!(cause instanceof TomlError)) throw cause;
    const [reason] = cause.message.split('\n');
    throw new FloeError('schema_violation', `${file}:${cause.line}: ${reason}`, { file, line: cause.line }, cause);
  }
}

/**
 * Returns a function that finds the line of a key in a TOML text. This is the line of its own assignment, or else the line of the closest
 * enclosing key or table. The function reads headers and assignments only, so a key in an inline table has the line of that table.
 */
function lineFinder(text: string): LineFinder {
  const lines = new Map<string, number>();
  const counts = new Map<string, number>();
  let table: string[] = [];
  for (const [index, line] of text.split('\n').entries()) {
    const header = /^\s*(\[\[?)([^\]]+)\]/.exec(line);
    const assigned = /^\s*([A-Za-z0-9_."'-]+)\s*=/.exec(line);
    if (header !== null) {
      const path = indexed(keysOf(header[2] ?? ''), counts);
      table = header[1] === '[[' ? next(path, counts) : path;
      lines.set(table.join('\n'), index + 1);
    } else if (assigned !== null) {
      lines.set([...table, ...keysOf(assigned[1] ?? '')].join('\n'), index + 1);
    }
  }
  return (path) => {
    for (let length = path.length; length > 0; length--) {
      const line = lines.get(path.slice(0, length).map(String).join('\n'));
      if (line !== undefined) return line;
    }
    return null;
  };
}

function keysOf(dotted: string): string[] {
  return dotted.split('.').map((key) => key.trim().replaceAll(/^["']|["']$/g, ''));
}

/** Adds the index of the last entry after each key in a path that names a list of tables. */
function indexed(keys: readonly string[], counts: ReadonlyMap<string, number>): string[] {
  const path: string[] = [];
  for (const [position, key] of keys.entries()) {
    path.push(key);
    const count = counts.get(path.join('\n'));
    if (count !== undefined && position < keys.length - 1) path.push(String(count - 1));
  }
  return path;
}

/** Returns the path of a new entry of a list of tables. */
function next(path: readonly string[], counts: Map<string, number>): string[] {
  const list = path.join('\n');
  const count = counts.get(list) ?? 0;
  counts.set(list, count + 1);
  return [...path, String(count)];
}
