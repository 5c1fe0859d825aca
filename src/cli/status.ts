import type { Command } from 'commander';
import { nodeState, type RolloutStatus, type TaskSummary } from '../schema/index.ts';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { json, line, paint, table } from './print.ts';

const BYTES_PER_MB = 1024 * 1024;

export function registerStatus(program: Command): void {
  withConnectionOptions(
    program.command('status').description('what runs and what limits throughput now; --limits lists every limit'),
  )
    .option('--limits', 'list every limit and counter')
    .action(async (options: ConnectionOptions & { limits?: boolean }) => {
      await withClient(options, async (client) => {
        const [status, tasks] = [await client.status(), await client.tasks()];
        if (options.json) return json({ ...status, recent_tasks: tasks });
        showBottleneck(status);
        section('sessions', ['status', 'count'], Object.entries(status.sessions).filter(atWork));
        showTrainers(status);
        showNodes(status);
        if (options.limits === true) showLimits(status);
        showTasks(tasks);
      });
    });
}

function showBottleneck({ bottleneck, holding_back, hints, sessions }: RolloutStatus): void {
  if (bottleneck === null) {
    const why = (sessions.QUEUED ?? 0) > 0 ? 'nodes have room for what is queued' : 'nothing waits';
    line(`${paint('bold', 'bottleneck')}  ${paint('green', 'none')}: ${why}`);
  } else {
    line(`${paint('bold', 'bottleneck')}  ${paint('yellow', bottleneck.name)}: ${bottleneck.why}`);
    line(`  ${bottleneck.remedy}`);
  }
  for (const { limit, where, count, what } of holding_back) line(`  ${limit} of ${where} holds back ${count} ${what}`);
  for (const { node_id, setting, value, suggested, why } of hints) {
    // With the option of `floe gateway` that sets it.
    const option = setting.replace(/^max_(\w+)_workers$/, '--$1 ($&)');
    line(`  ${paint('cyan', 'hint')}: ${option} of node ${node_id} is ${value}, better ${suggested}: ${why}`);
  }
  line();
}

function showTrainers({ trainers }: RolloutStatus): void {
  section(
    'trainers',
    ['trainer', 'queued', 'live', 'uncollected', 'MiB', 'held back'],
    trainers.map((one) => [
      one.trainer,
      one.queued,
      one.live,
      one.uncollected_results,
      Math.round(one.uncollected_bytes / BYTES_PER_MB),
      one.held_back,
    ]),
  );
}

function showNodes({ nodes, stages }: RolloutStatus): void {
  section(
    'nodes',
    ['node', 'state', 'init', 'ready', 'running', 'postrun', 'waiting', 'leased', 'takeovers', 'last heartbeat'],
    nodes.map((node) => [
      node.node_id,
      nodeState(node),
      `${node.metrics.init_inflight}/${node.max_init_workers}`,
      `${node.metrics.ready_depth}/${node.ready_size}`,
      `${node.metrics.run_inflight}/${node.max_run_workers}`,
      `${node.metrics.postrun_inflight}/${node.max_postrun_workers}`,
      node.metrics.postrun_queue_depth,
      node.leased_sessions,
      node.takeovers,
      node.last_heartbeat,
    ]),
  );
  for (const { node_id, healthy, refuses } of nodes) {
    if (healthy && refuses !== null) line(`node ${node_id} takes no sessions: ${refuses}`);
  }
  if (stages.samples === 0) return;
  const means = [stages.init_ms, stages.running_ms, stages.postrun_ms].map(
    (ms) => `${((ms ?? 0) / 1000).toFixed(2)} s`,
  );
  line(`means of ${stages.samples} sessions: INIT ${means[0]}, RUNNING ${means[1]}, POSTRUN ${means[2]}\n`);
}

function showLimits({ limits, counters }: RolloutStatus): void {
  const shown = Object.entries(limits).map(([name, value]) => [name, value === null ? null : String(value)]);
  section('limits', ['limit', 'value'], shown);
  section('counters', ['counter', 'count'], Object.entries(counters).filter(atWork));
}

function showTasks(tasks: readonly TaskSummary[]): void {
  section(
    'tasks',
    ['task', 'harness', 'status', 'done', 'of', 'mean reward'],
    tasks.map((task) => [
      task.task_id,
      task.harness,
      task.status,
      task.completed_sessions,
      task.total_sessions,
      task.mean_reward === null ? null : Number(task.mean_reward.toFixed(3)),
    ]),
  );
}

function section(
  title: string,
  header: readonly string[],
  rows: readonly (readonly (string | number | null)[])[],
): void {
  line(paint('bold', title));
  line(table(header, rows));
  line();
}

function atWork([, count]: readonly [string, number]): boolean {
  return count > 0;
}
