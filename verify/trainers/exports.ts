import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { ENCODINGS, type ExportOptions, encodeExport, type FormatName, trainingGroups } from '@floe-rl/data/trainers';
import { PAD_TOKEN_ID } from './trajectories.ts';

/** The formats whose samples may have several traces. Their files are in the folder that each trainer's program receives. */
const SEVERAL_TRACES: readonly FormatName[] = [
  'floe',
  'slime',
  'verl',
  'verl_batch',
  'nemo_rl',
  'skyrl',
  'tinker',
  'prime_rl',
  'trl_async',
  'areal',
  'roll',
  'rllm',
  'art',
];
/** The formats that are also, or only, written for samples with one trace. Their files are in the folder {@link ONE_TRACE_FOLDER}. */
const ONE_TRACE: readonly FormatName[] = ['floe', 'trl', 'skyrl', 'openrlhf'];
/** Folder of the samples with one trace, inside the folder that each trainer's program receives. */
const ONE_TRACE_FOLDER = 'one-trace';

/** A file of an export: its path below the folder, its format and its content. */
export type ExportFile = { readonly path: string; readonly format: FormatName; readonly text: string };

/** Exports results in every trainer's format. `several` may have several traces for each session, `one` has one. */
export function exportFiles(several: readonly SessionResult[], one: readonly SessionResult[]): ExportFile[] {
  return [
    ...SEVERAL_TRACES.map((format) => exportFile(several, format, '')),
    ...ONE_TRACE.map((format) => exportFile(one, format, ONE_TRACE_FOLDER)),
  ];
}

export function writeFiles(folder: string, files: readonly ExportFile[]): void {
  mkdirSync(join(folder, ONE_TRACE_FOLDER), { recursive: true });
  for (const { path, text } of files) writeFileSync(join(folder, path), text);
}

/**
 * Writes what the numpy program of floe reads: the results of sessions, and floe's own rows of `exported` in both encodings. `exported` are the
 * same results, unless they have a defect.
 */
export function writeOwnRows(
  folder: string,
  results: readonly SessionResult[],
  exported: readonly SessionResult[],
): void {
  const groups = trainingGroups(exported);
  const lines = results.map((result) => `${JSON.stringify(result)}\n`);
  writeFileSync(join(folder, 'results.jsonl'), lines.join(''));
  for (const encoding of ENCODINGS) {
    const rows = encodeExport(groups, { format: 'floe', advantages: 'grpo' }, encoding);
    writeFileSync(join(folder, `trained.${encoding}`), rows);
  }
}

function exportFile(results: readonly SessionResult[], format: FormatName, folder: string): ExportFile {
  const options = optionsFor(results, format, folder === '');
  // The other formats are compared with floe's own rows. Some of them have advantages by default, so floe's rows get advantages, too.
  const request: ExportOptions = { format, options, ...(format === 'floe' ? { advantages: 'grpo' } : {}) };
  const text = encodeExport(trainingGroups(results), request, 'jsonl').toString();
  return { path: join(folder, `${format}.jsonl`), format, text };
}

function optionsFor(
  results: readonly SessionResult[],
  format: FormatName,
  hasSeveral: boolean,
): NonNullable<ExportOptions['options']> {
  const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
  const longest = (lengths: readonly number[]): number => lengths.reduce((a, b) => Math.max(a, b), 1);
  const prompt = longest(traces.map(({ prompt_ids }) => prompt_ids.length));
  const response = longest(traces.map(({ response_ids }) => response_ids.length));
  switch (format) {
    case 'verl_batch':
      return { prompt_length: prompt, response_length: response, pad_token_id: PAD_TOKEN_ID };
    case 'roll':
      return { sequence_length: prompt + response, pad_token_id: PAD_TOKEN_ID };
    case 'skyrl':
      return { step_wise: hasSeveral };
    default:
      return {};
  }
}
