import type { SessionFilter } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import {
  type AcceptanceGroup,
  DEFAULT_CONDITIONS,
  type Manifest,
  parseCondition,
  readSessions,
  ServerSessions,
  type SetEncoding,
  type SetFormat,
  type SetOptions,
  type SetRow,
  writeSet,
} from '@floe-rl/data';
import { type ConnectionOptions, withClient } from './connection.ts';
import { interruptible } from './lifetime.ts';
import { formatTable, printable, printJson, printLine, printNote } from './print.ts';

/** Where the sessions of an export come from: a server, or a set or file. */
export type SessionsFrom = { readonly filter: SessionFilter } | { readonly path: string };

/** The options of `floe export` for formats of data sets, as the command line has them. */
export type SetExportOptions = ConnectionOptions & {
  readonly output?: string;
  readonly split?: string;
  readonly splitKey: string;
  readonly accept?: readonly string[];
  readonly by: string;
  readonly minMargin: string;
};

const SET_SUMMARIES: Readonly<Record<SetFormat, string>> = {
  sessions: 'whole sessions with their traces, which floe import reads',
  sft: 'messages with the weight of their loss, and tokens, of accepted sessions',
  sharegpt: 'ShareGPT conversations of accepted sessions',
  preference: 'an accepted and a worse session of one task, with the margin of their rewards',
  verifier: 'prompt, response, reward and label of each session with a reward',
  atif: "a file for each session in Harbor's trajectory format",
};

/** Returns the rows of the list of formats. */
export function setFormatRows(): string[][] {
  return Object.entries(SET_SUMMARIES).map(([name, summary]) => [name, 'data set', summary, '-']);
}

/** Calls `work` with the sessions, and with a function that counts the sessions that could not be read, by reason. */
export async function withSessions<T>(
  from: SessionsFrom,
  options: ConnectionOptions,
  signal: AbortSignal,
  work: (rows: AsyncIterable<SetRow>, skipped: () => Readonly<Record<string, number>>) => Promise<T>,
): Promise<T> {
  if ('path' in from) return work(untilAborted(readSessions(from.path), signal), () => ({}));
  return withClient(options, (client) => {
    const sessions = new ServerSessions(client, from.filter, signal);
    return work(untilAborted(sessions.rows(), signal), () => sessions.skipped());
  });
}

async function* untilAborted(rows: AsyncIterable<SetRow>, signal: AbortSignal): AsyncGenerator<SetRow> {
  for await (const row of rows) {
    signal.throwIfAborted();
    yield row;
  }
}

/** Writes a data set and prints which sessions were accepted, by the field `by`. */
export async function exportSet(
  from: SessionsFrom,
  format: SetFormat,
  encoding: SetEncoding,
  options: SetExportOptions,
): Promise<void> {
  const { output } = options;
  if (output === undefined || output === '-') {
    throw new FloeError('bad_request', `the format ${format} is a folder; name it with --output`);
  }
  const minMargin = Number(options.minMargin);
  if (!(minMargin >= 0))
    throw new FloeError('bad_request', `--min-margin ${options.minMargin} is not a number of at least 0`);
  const settings: Omit<SetOptions, 'skipped'> = {
    dir: output,
    format,
    encoding,
    split: options.split ?? null,
    splitKey: options.splitKey,
    conditions: (options.accept ?? DEFAULT_CONDITIONS).map(parseCondition),
    by: options.by,
    minMargin,
  };
  const manifest = await interruptible((signal) =>
    withSessions(from, options, signal, (rows, skipped) => writeSet(rows, { ...settings, skipped })),
  );
  if (manifest === null) printNote('Interrupted: nothing was written.');
  else printManifest(manifest, output, options.json === true);
}

function printManifest(manifest: Manifest, output: string, asJson: boolean): void {
  const { acceptance, format, encoding, sessions, rows, splits, skipped } = manifest;
  if (asJson) {
    printJson(manifest);
    return;
  }
  const header = [acceptance.by, 'tasks', 'sessions', 'accepted', 'rate', 'sampled tokens'];
  printLine(
    formatTable(header, [...acceptance.groups.map(tableRow), tableRow({ value: 'Total', ...acceptance.total })]),
  );
  const parts = Object.entries(splits).map(([split, count]) => `${split} ${count}`);
  printNote(
    `Wrote ${sessions} sessions as ${rows} rows (${parts.join(', ') || 'none'}): ${output}, ${format}, ${encoding}.`,
  );
  for (const [reason, count] of Object.entries(skipped)) printNote(`${count} sessions could not be read: ${reason}.`);
}

function tableRow(group: AcceptanceGroup): (string | number)[] {
  const rate = `${(group.rate * 100).toFixed(1)}%`;
  const value = group.value === null ? '(none)' : printable(group.value);
  return [value, group.tasks, group.sessions, group.accepted, rate, group.sampled_tokens];
}
