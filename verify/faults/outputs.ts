// Reads the output of `floe generate` in a form in which the outputs of two runs over the same input are equal.
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { FloeClient } from '@floe-rl/client';
import { readJournal } from '#data/generation/journal';

/** Fields of records that differ between two runs over the same input. */
const RUN_FIELDS = new Set(['run', 'session_id']);

/** How often each record of each output file occurs, by the file's name and the record's text. */
export type Output = ReadonlyMap<string, number>;

export async function readOutput(dir: string): Promise<Output> {
  const output = new Map<string, number>();
  for (const name of await readdir(dir)) {
    if (!/^(sft|preference|verifier|acceptance)/.test(name)) continue;
    const text = await readFile(join(dir, name), 'utf8');
    for (const line of text.split('\n')) {
      if (line === '') continue;
      const record = JSON.stringify(JSON.parse(line), (key, value) => (RUN_FIELDS.has(key) ? undefined : value));
      const key = `${name} ${record}`;
      output.set(key, (output.get(key) ?? 0) + 1);
    }
  }
  return output;
}

/** Records that one output has and another lacks. */
export type Difference = { readonly lost: readonly string[]; readonly doubled: readonly string[] };

/**
 * Compares an output with the expected output. A record that occurs less often than expected is lost. A record that occurs more often, or that
 * is not expected, is doubled.
 */
export function compareOutputs(expected: Output, actual: Output): Difference {
  const lost: string[] = [];
  const doubled: string[] = [];
  for (const key of new Set([...expected.keys(), ...actual.keys()])) {
    const missing = (expected.get(key) ?? 0) - (actual.get(key) ?? 0);
    if (missing > 0) lost.push(key);
    if (missing < 0) doubled.push(key);
  }
  return { lost, doubled };
}

/** Returns a sentence for each generation (row, sample and retry) that was run twice: the server has results of several sessions for it. */
export async function doubledSessions(client: FloeClient, dir: string): Promise<string[]> {
  const { run } = JSON.parse(await readFile(join(dir, 'run.json'), 'utf8')) as { run: string };
  const sessions = new Map<string, Set<string>>();
  for await (const { metadata, session_id: id } of client.results({ trainer: run, peek: true, follow: false })) {
    const key = JSON.stringify(metadata.floe_generate);
    sessions.set(key, (sessions.get(key) ?? new Set()).add(id));
  }
  return [...sessions].flatMap(([key, ids]) => (ids.size > 1 ? [`${ids.size} sessions of ${key}`] : []));
}

/** Returns the defects of a journal. A generation that it contains twice is doubled, and a damaged line is lost. */
export async function checkJournal(dir: string): Promise<Difference> {
  const path = join(dir, 'journal.jsonl');
  const seen = new Set<string>();
  const lost: string[] = [];
  const doubled: string[] = [];
  for await (const { record, number } of readJournal(path)) {
    if (record === null) lost.push(`line ${number} of the journal is damaged`);
    if (record?.kind !== 'result') continue;
    const key = `row ${record.row}, sample ${record.sample}, retry ${record.retry}`;
    if (seen.has(key)) doubled.push(`${key} in the journal`);
    seen.add(key);
  }
  return { lost, doubled };
}
