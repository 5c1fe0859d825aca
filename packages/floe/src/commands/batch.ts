import { SPLITS, type Split } from '@floe-rl/agents';
import { FloeError } from '@floe-rl/core';
import { readRows } from '@floe-rl/core/rows';
import { type BatchStreamRequest, type BatchStreamView, batchStreamRequestSchema } from '@floe-rl/core/schema';
import {
  ADVANTAGE_METHODS,
  type AdvantageMethod,
  CONSTRAINED_USES,
  type ConstrainedUse,
  FORMAT_NAMES,
} from '@floe-rl/data/trainers';
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { groupStream } from './group-files.ts';
import { countOption, numberOption, secondsOption } from './options.ts';
import { formatTable, printJson, printLine } from './print.ts';
import { readYamlFile } from './yaml-file.ts';

/** Number of rows of a local file that one request sends. */
const ROWS_PER_REQUEST = 500;

type CreateOptions = ConnectionOptions & { rows?: string; environments?: string; split: Split };
type NextOptions = ConnectionOptions & {
  size?: string;
  policyVersion?: string;
  after?: string;
  wait: string;
  format?: string;
  advantages?: AdvantageMethod;
  perSession?: boolean;
  perTurn?: boolean;
  constrained?: ConstrainedUse;
};

/** Registers the commands that let people create batch streams and see their state. Trainers use a client instead. */
export function registerBatch(program: Command): void {
  const batch = program.command('batch').description('create batch streams, and see or end them');
  withConnectionOptions(
    batch
      .command('create [file]')
      .description('create a batch stream from a YAML or JSON file; a repeat with the same batch_id changes nothing')
      .option(
        '--environments <file>',
        'environment groups, of floe or as a configuration of ROLL, which the stream plays; <file> then has its other fields',
      )
      .addOption(new Option('--split <name>', 'part of the environment groups').choices(SPLITS).default('train'))
      .option(
        '--rows <file>',
        'JSON or JSON lines whose rows are sent to the stream; a repeat sends only missing rows',
      ),
  ).action(create);
  withConnectionOptions(batch.command('list').description('list the batch streams, newest first')).action(
    async (options: ConnectionOptions) => {
      const streams = await withClient(options, (client) => client.batchStreams());
      if (options.json) printJson(streams);
      else printStreams(streams);
    },
  );
  withConnectionOptions(batch.command('show <id>').description('print the state of a batch stream')).action(
    async (id: string, options: ConnectionOptions) => {
      const stream = await withClient(options, (client) => client.batchStream(id));
      if (options.json) printJson(stream);
      else printStream(stream);
    },
  );
  withConnectionOptions(
    batch
      .command('next <id>')
      .description('print the next batch as JSON; the same --after prints the same batch')
      .option('--size <n>', 'number of groups')
      .option('--policy-version <version>', 'version of the policy that trains on the batch')
      .option('--after <n>', 'number of the last batch that was handled (default: the last one that was handed out)')
      .option('--wait <seconds>', 'longest time to wait for a complete batch', '30')
      .addOption(new Option('-f, --format <name>', "print the records in a trainer's format").choices(FORMAT_NAMES))
      .addOption(
        new Option('--advantages <method>', 'how advantages of the records are computed').choices(ADVANTAGE_METHODS),
      )
      .option('--per-session', "divide a sample's advantage by its number of traces")
      .option('--per-turn', 'an advantage for each reply, from its reward and those of the replies after it')
      .addOption(
        new Option('--constrained <use>', 'whether trained tokens that a constraint restricted stay trained').choices(
          CONSTRAINED_USES,
        ),
      ),
  ).action(async (id: string, options: NextOptions) => {
    const reply = await withClient(options, (client) =>
      client.nextBatch(id, {
        size: options.size === undefined ? undefined : countOption('--size', options.size),
        policyVersion: options.policyVersion,
        after: options.after === undefined ? undefined : numberOption('--after', options.after),
        waitSeconds: secondsOption('--wait', options.wait),
        format: options.format,
        advantages: options.advantages,
        perSession: options.perSession,
        perTurn: options.perTurn,
        constrained: options.constrained,
      }),
    );
    printJson(reply);
  });
  withConnectionOptions(
    batch.command('end <id>').description('end a batch stream: its running groups are cancelled'),
  ).action(async (id: string, options: ConnectionOptions) => {
    const stream = await withClient(options, (client) => client.endBatchStream(id));
    if (options.json) printJson(stream);
    else printStream(stream);
  });
}

async function create(file: string | undefined, options: CreateOptions): Promise<void> {
  const given = await streamOf(file, options);
  const stream = await withClient(options, async (client) => {
    const created = await client.createBatchStream(withOpenSource(given, options.rows));
    if (options.rows === undefined || created.rows_complete) return created;
    let index = 0;
    let part: Readonly<Record<string, unknown>>[] = [];
    const send = async (last: boolean): Promise<void> => {
      const after = index - part.length;
      if (part.length > 0 || last) await client.addBatchRows(created.batch_id, part, { after, last });
      part = [];
    };
    for await (const { fields } of readRows(options.rows)) {
      index += 1;
      if (index > (created.row_count ?? 0)) part.push(fields);
      if (part.length === ROWS_PER_REQUEST) await send(false);
    }
    await send(true);
    return client.batchStream(created.batch_id);
  });
  if (options.json) printJson(stream);
  else printStream(stream);
}

async function streamOf(file: string | undefined, options: CreateOptions): Promise<BatchStreamRequest> {
  if (options.environments === undefined) {
    if (file === undefined)
      throw new FloeError('bad_request', 'name a file, or environment groups with --environments');
    return readYamlFile(file, batchStreamRequestSchema);
  }
  if (options.rows !== undefined) {
    throw new FloeError('bad_request', '--rows: environment groups have rows of their own');
  }
  const fields = file === undefined ? {} : await readYamlFile(file, z.record(z.string(), z.unknown()));
  return groupStream(options.environments, options.split, fields);
}

/** Gives a stream a source that accepts rows in parts when its rows are sent in parts. */
function withOpenSource(stream: BatchStreamRequest, rows: string | undefined): BatchStreamRequest {
  return rows === undefined ? stream : { ...stream, source: { kind: 'rows', rows: [], open: true } };
}

function printStreams(streams: readonly BatchStreamView[]): void {
  printLine(
    formatTable(
      ['id', 'status', 'batches', 'epoch', 'running', 'ready', 'rejected'],
      streams.map(({ batch_id, status, done, batch, epoch, progress }) => [
        batch_id,
        done ? 'done' : status,
        batch,
        epoch,
        progress.running,
        progress.ready,
        rejectedOf(progress.rejected),
      ]),
    ),
  );
}

function printStream(stream: BatchStreamView): void {
  const { progress, useful_share: useful, length_bias: bias } = stream;
  const rows: [string, string | number][] = [
    ['stream', stream.batch_id],
    ['status', stream.done ? 'done' : stream.status],
    ['batches', `${stream.batch} handed out, ${stream.acknowledged} confirmed`],
    [
      'rows',
      `${stream.row_count ?? 'endless'}${stream.rows_complete ? '' : ', more may follow'}; epoch ${stream.epoch}`,
    ],
    ['groups', `${progress.running} running, ${progress.ready} ready, ${progress.handed} handed out`],
    [
      'rejected',
      Object.entries(progress.rejected)
        .map(([reason, count]) => `${reason} ${count}`)
        .join(', ') || 'none',
    ],
    ['started again', `${progress.expired} too old, ${progress.restarted} interrupted`],
    ['rows not sampled', `${progress.invalid_rows} do not fit the template, ${progress.retired_rows} retired`],
    ['useful share', useful === null ? '-' : `${Math.round(useful * 100)} % of the tokens`],
    ['length bias', bias === null ? '-' : bias.toFixed(2)],
  ];
  for (const [name, value] of rows) printLine(`${name.padEnd(18)}${value}`);
  for (const { row_index, message } of stream.problems.slice(0, 5)) printLine(`row ${row_index}: ${message}`);
  if (progress.warning !== null) printLine(`warning: ${progress.warning}`);
  if (stream.source_error !== null) printLine(`source: ${stream.source_error}`);
}

function rejectedOf(rejected: Readonly<Record<string, number>>): number {
  return Object.values(rejected).reduce((sum, count) => sum + count, 0);
}
