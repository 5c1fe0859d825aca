import { randomUUID } from 'node:crypto';
import { rename, rm, writeFile } from 'node:fs/promises';
import type { FloeClient } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { SET_ENCODINGS, SET_FORMATS, type SetEncoding, type SetFormat, type SetRow } from '@floe-rl/data';
import {
  ADVANTAGE_METHODS,
  type AdvantageMethod,
  CONSTRAINED_USES,
  type ConstrainedUse,
  describeFormats,
  ENCODINGS,
  type Encoding,
  encodeExport,
  FORMAT_NAMES,
  type FormatName,
  trainingGroups,
} from '@floe-rl/data/trainers';
import { type Command, Option } from 'commander';
import { withClient, withConnectionOptions } from './connection.ts';
import { exportSet, type SessionsFrom, type SetExportOptions, setFormatRows, withSessions } from './export-set.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';
import { parseWhere } from './where-options.ts';

type Options = SetExportOptions & {
  format: FormatName | SetFormat;
  encoding: Encoding | SetEncoding;
  where: readonly string[];
  from?: string;
  advantages?: AdvantageMethod;
  perSession?: boolean;
  perTurn?: boolean;
  constrained?: ConstrainedUse;
  set: Readonly<Record<string, string>>;
  partial?: boolean;
};

export function registerExport(program: Command): void {
  withConnectionOptions(
    program
      .command('export [tasks...]')
      .description("write ended sessions as a data set or in a trainer's format; without sessions, list the formats")
      .addOption(
        new Option('-f, --format <name>', 'a format of data sets or of a trainer')
          .choices([...SET_FORMATS, ...FORMAT_NAMES])
          .default('floe'),
      )
      .addOption(
        new Option('--encoding <name>', 'JSON lines; Parquet for sessions; Arrow IPC for trainers')
          .choices([...new Set([...ENCODINGS, ...SET_ENCODINGS])])
          .default('jsonl'),
      )
      .option(
        '--where <name=value>',
        'only sessions that match this filter of GET /sessions; may be given several times, and needs no task',
        (text: string, before: readonly string[]) => [...before, text],
        [],
      )
      .option('--from <path>', 'read the sessions of an exported set or a file of results, without a server')
      .option('--split <rule>', 'data sets: shares such as train=0.9,test=0.1, or the field that names the split')
      .option('--split-key <field>', 'data sets: field that stays together in one split', 'task_id')
      .option(
        '--accept <condition>',
        'data sets: condition for acceptance, such as reward>=1 (default); may be given several times',
        (text: string, before: readonly string[] | undefined) => [...(before ?? []), text],
      )
      .option('--by <field>', 'data sets: field by which accepted sessions are counted', 'origin.source')
      .option('--min-margin <number>', 'preference: least difference of the rewards of a pair', '0')
      .addOption(
        new Option(
          '--advantages <method>',
          'how advantages are computed (default: grpo for formats that need them)',
        ).choices(ADVANTAGE_METHODS),
      )
      .option('--per-session', "divide a sample's advantage by its number of traces")
      .option('--per-turn', 'an advantage for each reply, from its reward and those of the replies after it')
      .addOption(
        new Option('--constrained <use>', 'whether trained tokens that a constraint restricted stay trained').choices(
          CONSTRAINED_USES,
        ),
      )
      .option('--set <option=value>', 'option of the format; may be given several times', collectOption, {})
      .option('--partial', 'also export tasks that are still running, with the samples that have ended')
      .option('-o, --output <file>', 'file to write, or - for standard output', '-'),
  ).action(async (tasks: string[], options: Options) => {
    const from = sourceOf(tasks, options);
    const { format, encoding } = options;
    if (from === null) printFormats(options.json === true);
    else if (isOneOf(SET_FORMATS, format)) {
      await exportSet(from, format, knownEncoding(SET_ENCODINGS, encoding, format), options);
    } else await exportRecords(from, tasks, format, knownEncoding(ENCODINGS, encoding, format), options);
  });
}

/** Returns where the sessions come from; `null` when the command line names none. */
function sourceOf(tasks: readonly string[], { where, from }: Options): SessionsFrom | null {
  if (from !== undefined) {
    if (tasks.length === 0 && where.length === 0) return { path: from };
    throw new FloeError('bad_request', '--from reads all sessions of the path; leave out tasks and --where');
  }
  if (tasks.length === 0 && where.length === 0) return null;
  const filter = parseWhere(where);
  if (tasks.length === 0) return { filter };
  if (filter.task === undefined) return { filter: { ...filter, task: [...new Set(tasks)] } };
  throw new FloeError('bad_request', 'name the tasks as arguments or with --where task=, not both');
}

function isOneOf<T extends string>(names: readonly T[], name: string): name is T {
  return (names as readonly string[]).includes(name);
}

function knownEncoding<T extends string>(encodings: readonly T[], encoding: string, format: string): T {
  if (isOneOf(encodings, encoding)) return encoding;
  throw new FloeError(
    'unsupported',
    `the format ${format} has the encodings ${encodings.join(' and ')}, not ${encoding}`,
  );
}

/** Writes records in the format of a trainer. All sessions are in memory. */
async function exportRecords(
  from: SessionsFrom,
  tasks: readonly string[],
  format: FormatName,
  encoding: Encoding,
  options: Options,
): Promise<void> {
  const isTasks = tasks.length > 0 && options.where.length === 0;
  const results = isTasks
    ? await withClient(options, (client) => readTasks(client, [...new Set(tasks)], options.partial === true))
    : await withSessions(from, options, new AbortController().signal, collected);
  const groups = trainingGroups(results);
  const { advantages, perSession, perTurn, constrained, set, output = '-' } = options;
  const request = { format, advantages, perSession, perTurn, constrained, options: set };
  await write(encodeExport(groups, request, encoding), output);
  const samples = groups.reduce((sum, group) => sum + group.samples.length, 0);
  printNote(
    `Wrote ${groups.length} groups with ${samples} samples as ${format}; ` +
      `${results.length - samples} samples cannot be trained on.`,
  );
}

async function collected(rows: AsyncIterable<SetRow>): Promise<SessionResult[]> {
  const results: SessionResult[] = [];
  for await (const row of rows) results.push(row);
  return results;
}

function collectOption(text: string, before: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  const at = text.indexOf('=');
  if (at < 1) throw new FloeError('bad_request', `--set ${JSON.stringify(text)} does not have the form option=value`);
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

/** Reads the finished sessions of all tasks. Throws `not_ready` for a task that is running, unless `partial` is set. */
async function readTasks(client: FloeClient, tasks: readonly string[], partial: boolean): Promise<SessionResult[]> {
  const results: SessionResult[] = [];
  for (const id of tasks) {
    const { status } = await client.task(id);
    if (status === 'running' && !partial) {
      throw new FloeError(
        'not_ready',
        `the task ${id} is still running; wait for its end, or export what there is with --partial`,
        {
          task_id: id,
        },
      );
    }
    results.push(...(await client.taskResults(id)));
  }
  return results;
}

/** Writes all bytes or none: a file appears under its name when it is complete. */
async function write(bytes: Buffer, output: string): Promise<void> {
  if (output === '-') {
    await new Promise<void>((resolve, reject) =>
      process.stdout.write(bytes, (error) => (error ? reject(error) : resolve())),
    );
    return;
  }
  const unfinished = `${output}.${randomUUID()}.tmp`;
  try {
    await writeFile(unfinished, bytes);
    await rename(unfinished, output);
  } catch (thrown) {
    await rm(unfinished, { force: true });
    throw new FloeError(
      'setup_failed',
      `${output} cannot be written: ${(thrown as Error).message}`,
      { file: output },
      thrown,
    );
  }
}

function printFormats(asJson: boolean): void {
  const formats = describeFormats();
  if (asJson) {
    printJson(formats);
    return;
  }
  const rows = formats.map(({ name, summary, record, options }) => [
    name,
    record,
    summary,
    options.map((option) => option.name).join(', ') || '-',
  ]);
  printLine(formatTable(['format', 'a record per', 'content', 'options (--set)'], [...setFormatRows(), ...rows]));
}
