import { randomUUID } from 'node:crypto';
import { rename, rm, writeFile } from 'node:fs/promises';
import { type Command, Option } from 'commander';
import type { FloeClient } from '../client/index.ts';
import { FloeError } from '../core/errors.ts';
import type { SessionResult } from '../schema/index.ts';
import {
  ADVANTAGE_METHODS,
  type AdvantageMethod,
  describeFormats,
  ENCODINGS,
  type Encoding,
  encodeExport,
  FORMAT_NAMES,
  type FormatName,
  trainingGroups,
} from '../trainers/index.ts';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';

type Options = ConnectionOptions & {
  format: FormatName;
  encoding: Encoding;
  output?: string;
  advantages?: AdvantageMethod;
  perSession?: boolean;
  set: Readonly<Record<string, string>>;
  partial?: boolean;
};

export function registerExport(program: Command): void {
  withConnectionOptions(
    program
      .command('export [tasks...]')
      .description("write the samples of finished tasks in a trainer's format; without a task, list the formats")
      .addOption(new Option('-f, --format <name>', 'format of the records').choices(FORMAT_NAMES).default('floe'))
      .addOption(new Option('--encoding <name>', 'JSON lines or Arrow IPC').choices(ENCODINGS).default('jsonl'))
      .addOption(
        new Option(
          '--advantages <method>',
          'how advantages are computed (default: grpo for formats that need them)',
        ).choices(ADVANTAGE_METHODS),
      )
      .option('--per-session', "divide a sample's advantage by its number of traces")
      .option('--set <option=value>', 'option of the format; may be given several times', collectOption, {})
      .option('--partial', 'also export tasks that are still running, with the samples that have ended')
      .option('-o, --output <file>', 'file to write, or - for standard output', '-'),
  ).action(async (tasks: string[], options: Options) => {
    if (tasks.length === 0) {
      printFormats(options.json === true);
      return;
    }
    const results = await withClient(options, (client) =>
      readTasks(client, [...new Set(tasks)], options.partial === true),
    );
    const groups = trainingGroups(results);
    const { format, advantages, perSession, set, encoding, output = '-' } = options;
    const bytes = encodeExport(groups, { format, advantages, perSession, options: set }, encoding);
    await write(bytes, output);
    const samples = groups.reduce((sum, group) => sum + group.samples.length, 0);
    printNote(
      `Wrote ${groups.length} groups with ${samples} samples as ${format}; ` +
        `${results.length - samples} samples cannot be trained on.`,
    );
  });
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
  printLine(formatTable(['format', 'a record per', 'content', 'options (--set)'], rows));
}
