import type { Command } from 'commander';
import { type ConnectionOptions, connected, withConnection } from './connection.ts';
import { json, line, paint, table } from './print.ts';

export function registerStatus(program: Command): void {
  withConnection(program.command('status').description('what runs, and every limit with its value')).action(
    async (options: ConnectionOptions) => {
      await connected(options, async (client) => {
        const [status, tasks] = [await client.status(), await client.tasks()];
        if (options.json) return json({ ...status, recent_tasks: tasks });
        line(paint('bold', 'sessions'));
        line(
          table(
            ['status', 'count'],
            Object.entries(status.sessions).filter(([, count]) => count > 0),
          ),
        );
        line(paint('bold', '\nnodes'));
        line(
          table(
            ['node', 'healthy', 'init', 'ready', 'running', 'postrun', 'last heartbeat'],
            status.nodes.map((node) => [
              node.node_id,
              node.draining ? 'draining' : node.healthy ? 'yes' : 'no',
              `${node.metrics.init_inflight}/${node.max_init_workers}`,
              `${node.metrics.ready_depth}/${node.ready_size}`,
              `${node.metrics.run_inflight}/${node.max_run_workers}`,
              `${node.metrics.postrun_inflight}/${node.max_postrun_workers}`,
              node.last_heartbeat,
            ]),
          ),
        );
        line(paint('bold', '\ntasks'));
        line(
          table(
            ['task', 'harness', 'status', 'done', 'of', 'mean reward'],
            tasks.map((task) => [
              task.task_id,
              task.harness,
              task.status,
              task.completed_sessions,
              task.total_sessions,
              task.mean_reward === null ? null : Number(task.mean_reward.toFixed(3)),
            ]),
          ),
        );
      });
    },
  );
}
