import type { Command } from 'commander';
import type { SessionResult } from '../schema/index.ts';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { json, line, note } from './print.ts';

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
      .description('finished sessions in order; with --json one full result per line, token data included')
      .option('--after <cursor>', 'start behind this cursor (default: where the consumer was, else the first)')
      .option('--trainer <name>', 'of the tasks of this trainer only')
      .option('--consumer <name>', 'read under this name: what was printed counts as collected once more is asked for')
      .option('--limit <n>', 'at most so many', '100')
      .option('--follow', 'wait for more, for ever'),
  ).action(async (options: Options) => {
    await withClient(options, async (client) => {
      const follow = options.follow === true;
      const limit = follow ? Number.POSITIVE_INFINITY : Number(options.limit);
      const after = options.after === undefined ? {} : { after: Number(options.after) };
      const who = { ...named('consumer', options.consumer), ...named('trainer', options.trainer) };
      // Without a name this is somebody looking, not the trainer.
      const peek = options.consumer === undefined;
      let cursor = options.after;
      let count = 0;
      if (!options.json) line(HEADER.join('\t'));
      for await (const result of client.results({ ...after, ...who, peek, follow })) {
        cursor = String(result.cursor ?? cursor);
        if (options.json) json(result);
        else line(row(result).join('\t'));
        if (++count >= limit) break;
      }
      if (!options.json) note(`${count} results; go on with: ${again({ ...options, after: cursor })}`);
    });
  });
}

/** The command that goes on. Without the consumer's name it would look on, and not read on. */
function again(options: Options): string {
  const given = (['consumer', 'trainer', 'after'] as const).filter((name) => options[name] !== undefined);
  return ['floe results', ...given.map((name) => `--${name} ${options[name]}`)].join(' ');
}

function named(field: 'consumer' | 'trainer', value: string | undefined): { [name: string]: string } {
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
