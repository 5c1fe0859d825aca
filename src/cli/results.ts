import type { Command } from 'commander';
import { type ConnectionOptions, connected, withConnection } from './connection.ts';
import { json, line, note, table } from './print.ts';

type Options = ConnectionOptions & { after: string; limit: string; follow?: boolean };

export function registerResults(program: Command): void {
  withConnection(
    program
      .command('results')
      .description('finished sessions in order; with --json one full result per line, token data included')
      .option('--after <cursor>', 'start behind this cursor', '0')
      .option('--limit <n>', 'at most so many', '100')
      .option('--follow', 'wait for more, for ever'),
  ).action(async (options: Options) => {
    await connected(options, async (client) => {
      let after = Number(options.after);
      let left = options.follow ? Number.POSITIVE_INFINITY : Number(options.limit);
      do {
        const wait = options.follow ? 30 : 0;
        const page = await client.results({ after, limit: Math.min(left, 100), wait });
        if (options.json) for (const result of page.results) json(result);
        else if (page.results.length > 0) {
          line(
            table(
              ['cursor', 'task', 'session', 'outcome', 'reward', 'traces', 'trainable'],
              page.results.map((result) => [
                result.cursor ?? null,
                result.task_id,
                result.session_id,
                result.outcome,
                result.reward,
                result.trace_count,
                result.trainable_tokens,
              ]),
            ),
          );
        }
        left -= page.results.length;
        if (page.results.length === 0 && !options.follow) break;
        after = page.next_cursor;
      } while (left > 0);
      if (!options.json) note(`next: floe results --after ${after}`);
    });
  });
}
