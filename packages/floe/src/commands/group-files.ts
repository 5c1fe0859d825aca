import { dirname, resolve } from 'node:path';
import {
  ENVIRONMENTS,
  type GroupFile,
  groupFileSchema,
  isRollFile,
  readRollFile,
  type Split,
  streamOfSplit,
} from '@floe-rl/agents';
import { fieldError, isRecord, parseAs } from '@floe-rl/core';
import { type BatchStreamRequest, batchStreamRequestSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { printNote } from './print.ts';
import { readYamlFile } from './yaml-file.ts';

/** Maximum number of files that may name one another in `defaults`. */
const MAX_FILES = 16;

type Content = Readonly<Record<string, unknown>>;

/** A file of environment groups. `notes` describe the parts of it that have no effect. */
type LoadedGroups = {
  readonly file: GroupFile;
  /** Number of groups of a batch of the split `train`; `null` when the file does not say it. */
  readonly batchSize: number | null;
  readonly notes: readonly string[];
};

/**
 * Reads a file of environment groups, in floe's own form or as a configuration of ROLL's agentic pipeline with the files that its `defaults`
 * name. Throws the errors of `readYamlFile`.
 */
async function readGroupFile(path: string): Promise<LoadedGroups> {
  const content = await readYamlFile(path, z.record(z.string(), z.unknown()));
  if (!isRollFile(content)) {
    return { file: parseAs(groupFileSchema, content, path), batchSize: null, notes: [] };
  }
  return readRollFile(await withDefaults(content, path, 1));
}

/**
 * Returns the batch stream that plays one split of a file of environment groups; `fields` are its other fields. Prints which parts of the file
 * have no effect.
 */
export async function groupStream(path: string, split: Split, fields: Content): Promise<BatchStreamRequest> {
  const { file, batchSize, notes } = await readGroupFile(path);
  for (const note of notes) printNote(note);
  const size = split === 'train' && batchSize !== null ? { batch_size: batchSize } : {};
  return parseAs(batchStreamRequestSchema, streamOfSplit(file, split, { ...size, ...fields }, ENVIRONMENTS), path);
}

/**
 * Returns the content of a file merged over the content of the files in its `defaults`. Later entries of `defaults` replace earlier entries.
 */
async function withDefaults({ defaults = [], ...own }: Content, path: string, files: number): Promise<Content> {
  if (files > MAX_FILES) throw fieldError('defaults', `more than ${MAX_FILES} files name one another`);
  if (!Array.isArray(defaults)) throw fieldError('defaults', 'is not a list');
  let merged: Content = {};
  for (const [index, entry] of (defaults as readonly unknown[]).entries()) {
    if (entry === '_self_') continue;
    if (typeof entry !== 'string' || !/^[^@\s]+(@_here_|@_global_)?$/.test(entry)) {
      throw fieldError(
        `defaults.${index}`,
        `must be a file, as in ../config/envs@_here_, and is ${JSON.stringify(entry)}`,
      );
    }
    const name = entry.replace(/@_(here|global)_$/, '');
    const file = resolve(dirname(path), name.endsWith('.yaml') ? name : `${name}.yaml`);
    const content = await readYamlFile(file, z.record(z.string(), z.unknown()));
    merged = merge(merged, await withDefaults(content, file, files + 1));
  }
  return merge(merged, own);
}

/** Returns the fields of both. A field of `over` replaces the same field of `under`, except that objects are merged. */
function merge(under: Content, over: Content): Content {
  const merged: Record<string, unknown> = { ...under };
  for (const [key, value] of Object.entries(over)) {
    const before = merged[key];
    merged[key] = isRecord(before) && isRecord(value) ? merge(before, value) : value;
  }
  return merged;
}
