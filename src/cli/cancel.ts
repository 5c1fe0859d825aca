import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { json, line } from './print.ts';

export function registerCancel(program: Command): void {
  withConnectionOptions(
    program.command('cancel <id>').description('cancel a task or a session (an id that starts with ses_)'),
  ).action(async (id: string, options: ConnectionOptions) => {
    await withClient(options, async (client) => {
      if (id.startsWith('ses_')) {
        const session = await client.cancelSession(id);
        if (options.json) json(session);
        else line(`session ${id}: ${session.status}`);
        return;
      }
      const task = await client.cancel(id);
      if (options.json) json(task);
      else line(`task ${id}: ${task.status}, ${task.completed_sessions} of ${task.total_sessions} sessions ended`);
    });
  });
}
