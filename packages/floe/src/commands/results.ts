import type { SessionResult } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { printJson, printLine, printNote } from './print.ts';

type Options = ConnectionOptions & {
  after?: string;
  limit: string;
  follow?: boolean;
  consumer?: string;
  trainer?: string;
};

export function registerResults(program: Command): void {
  withConnectionOptions(
    program
      .command('results')
      .description('print finished sessions in order; with --json one full result per line, including token data')
      .option(
        '--after <cursor>',
        'start after this cursor (default: the position of the consumer, else the first result)',
      )
      .option('--trainer <name>', 'only results of the tasks of this trainer')
      .option('--consumer <name>', 'read as this consumer; printed results count as collected with its next read')
      .option('--limit <n>', 'maximum number of results', '100')
      .option('--follow', 'wait for further results until interrupted'),
  ).action(async (options: Options) => {
    await withClient(options, async (client) => {
      const follow = options.follow === true;
      const limit = follow ? Number.POSITIVE_INFINITY : Number(options.limit);
      const after = options.after === undefined ? {} : { after: Number(options.after) };
      const reader = { ...optionalField('consumer', options.consumer), ...optionalField('trainer', options.trainer) };
      // Without --consumer, the command only inspects results, so the server must not mark them as collected.
      const peek = options.consumer === undefined;
      let cursor = options.after;
      let count = 0;
      if (!options.json) printLine(HEADER.join('\t'));
      for await (const result of client.results({ ...after, ...reader, peek, follow })) {
        cursor = String(result.cursor ?? cursor);
        if (options.json) printJson(result);
        else printLine(row(result).join('\t'));
        if (++count >= limit) break;
      }
      if (!options.json) printNote(`${count} results; continue with: ${nextCommand({ ...options, after: cursor })}`);
    });
  });
}

/**
 * Returns the command line that prints the results after those already printed. The command line has --consumer when this command had it,
 * so that the server continues to store the position of the same consumer.
 */
function nextCommand(options: Options): string {
  const names = (['consumer', 'trainer', 'after'] as const).filter((name) => options[name] !== undefined);
  return ['floe results', ...names.map((name) => `--${name} ${options[name]}`)].join(' ');
}

function optionalField(field: 'consumer' | 'trainer', value: string | undefined): { [name: string]: string } {
  return value === undefined ? {} : { [field]: value };
}

const HEADER = ['cursor', 'task', 'session', 'outcome', 'reward', 'traces', 'trainable'];

function row(result: SessionResult): (string | number)[] {
  return [
    result.cursor ?? '',
    result.task_id,
    result.session_id,
    result.outcome,
    result.reward ?? '-',
    result.trace_count,
    result.trainable_tokens,
  ];
}
