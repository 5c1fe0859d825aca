import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { printJson, printLine } from './print.ts';

export function registerCancel(program: Command): void {
  withConnectionOptions(
    program.command('cancel <id>').description('cancel a task or a session (an id that starts with ses_)'),
  ).action(async (id: string, options: ConnectionOptions) => {
    await withClient(options, async (client) => {
      if (id.startsWith('ses_')) {
        const session = await client.cancelSession(id);
        if (options.json) printJson(session);
        else printLine(`session ${id}: ${session.status}`);
        return;
      }
      const task = await client.cancel(id);
      if (options.json) printJson(task);
      else printLine(`task ${id}: ${task.status}, ${task.completed_sessions} of ${task.total_sessions} sessions ended`);
    });
  });
}
