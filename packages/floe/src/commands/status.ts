import type { FloeClient } from '@floe-rl/client';
import { MIB, systemClock } from '@floe-rl/core';
import {
  type NodeInfo,
  type NodeProcess,
  nodeState,
  type RolloutStatus,
  type SessionStatus,
  type TaskSummary,
} from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { interruptible } from './lifetime.ts';
import { type LiveLines, repeatLines, showLive } from './live.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { ProgressRate } from './progress-rate.ts';
import { terminal } from './screen.ts';
import { STAGES, stageLines, timeText } from './task-board.ts';

const ENDED = ['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'] as const satisfies readonly SessionStatus[];

/** The cells of a row of a table; `null` for an empty one. */
type Row = readonly (string | number | null)[];

type Options = ConnectionOptions & { limits?: boolean; live?: boolean };

export function registerStatus(program: Command): void {
  withConnectionOptions(program.command('status').description('show what runs and what limits the throughput'))
    .option('--limits', 'list every limit and counter')
    .option('--live', 'show it until Ctrl-C: in the window of a terminal, elsewhere as one line per second')
    .action(async (options: Options) => {
      await withClient(options, async (client) => {
        if (options.live) return showStatus(client, options);
        const [status, tasks] = [await client.status(), await client.tasks()];
        if (options.json) return printJson({ ...status, recent_tasks: tasks });
        for (const line of statusLines(status, tasks, options.limits === true)) printLine(line);
      });
    });
}

async function showStatus(client: FloeClient, options: Options): Promise<void> {
  const output = options.json ? null : terminal();
  const rate = new ProgressRate();
  await interruptible(async (signal) => {
    const read = async (): Promise<LiveLines> => {
      const status = await client.status(signal);
      rate.add(systemClock.monotonicMs(), endedOf(status));
      if (options.json) return { lines: [JSON.stringify(status)], isOver: false };
      if (output === null) return { lines: [summaryLine(status, rate)], isOver: false };
      const tasks = await client.tasks({}, signal);
      const head = [
        summaryLine(status, rate),
        '',
        ...stageLines((stage) => status.sessions[stage] ?? 0, openOf(status)),
        '',
      ];
      return { lines: [...head, ...statusLines(status, tasks, options.limits === true)], isOver: false };
    };
    if (output !== null) return showLive(output, read, signal);
    const print = (lines: readonly string[], problem: string | null): void =>
      problem === null ? printLine(lines.join('\n')) : printNote(problem);
    return repeatLines(read, print, signal);
  });
}

/** Returns the number of sessions that have ended and that the server still has. */
function endedOf({ sessions }: RolloutStatus): number {
  return ENDED.reduce((sum, status) => sum + (sessions[status] ?? 0), 0);
}

function openOf({ sessions }: RolloutStatus): number {
  return STAGES.reduce((sum, stage) => sum + (sessions[stage] ?? 0), 0);
}

function summaryLine(status: RolloutStatus, rate: ProgressRate): string {
  const perSecond = rate.perSecond();
  return [
    new Date(systemClock.nowMs()).toISOString().slice(11, 19),
    ...STAGES.map((stage) => `${stage} ${status.sessions[stage] ?? 0}`),
    `ended ${endedOf(status)}`,
    `${perSecond === null ? '-' : (60 * perSecond).toFixed(1)} sessions/min`,
    `remaining time ${timeText(rate.msUntil(openOf(status)))}`,
  ].join('  ');
}

/** Returns the lines that describe the status, with all limits and counters if `withLimits` is set. */
function statusLines(status: RolloutStatus, tasks: readonly TaskSummary[], withLimits: boolean): string[] {
  return [
    ...bottleneckLines(status),
    ...section('sessions', ['status', 'count'], Object.entries(status.sessions).filter(isNotZero)),
    ...trainerLines(status),
    ...batchStreamLines(status),
    ...nodeLines(status),
    ...(withLimits ? limitLines(status) : []),
    ...taskLines(tasks),
  ];
}

function bottleneckLines({ bottleneck, holding_back, hints, sessions }: RolloutStatus): string[] {
  const lines: string[] = [];
  if (bottleneck === null) {
    const why = (sessions.QUEUED ?? 0) > 0 ? 'the nodes have capacity for all queued sessions' : 'no session is queued';
    lines.push(`${paint('bold', 'bottleneck')}  ${paint('green', 'none')}: ${why}`);
  } else {
    lines.push(`${paint('bold', 'bottleneck')}  ${paint('yellow', bottleneck.name)}: ${bottleneck.why}`);
    lines.push(`  ${bottleneck.remedy}`);
  }
  for (const { limit, where, count, what } of holding_back)
    lines.push(`  ${limit} of ${where} holds back ${count} ${what}`);
  for (const { node_id, setting, value, suggested, why } of hints) {
    // Replaces the name of a node setting by the option of `floe gateway` that sets it, for example `--run (max_run_workers)`.
    const option = setting.replace(/^max_(\w+)_workers$/, '--$1 ($&)');
    lines.push(`  ${paint('cyan', 'hint')}: ${option} of node ${node_id} is ${value}, better ${suggested}: ${why}`);
  }
  lines.push('');
  return lines;
}

function trainerLines({ trainers }: RolloutStatus): string[] {
  return section(
    'trainers',
    ['trainer', 'queued', 'live', 'uncollected', 'MiB', 'held back'],
    trainers.map((row) => [
      row.trainer,
      row.queued,
      row.live,
      row.uncollected_results,
      Math.round(row.uncollected_bytes / MIB),
      row.held_back,
    ]),
  );
}

function batchStreamLines({ batch_streams: streams }: RolloutStatus): string[] {
  if (streams.length === 0) return [];
  const table = section(
    'batch streams',
    ['stream', 'trainer', 'batches', 'running', 'ready', 'handed', 'rejected', 'stale', 'useful'],
    streams.map((stream) => [
      stream.batch_id,
      stream.trainer,
      stream.batch,
      stream.running,
      stream.ready,
      stream.handed,
      Object.entries(stream.rejected)
        .map(([reason, groups]) => `${groups} ${reason}`)
        .join(', ') || null,
      stream.staleness,
      stream.useful_share === null ? null : `${Math.round(100 * stream.useful_share)} %`,
    ]),
  );
  const warnings = streams.flatMap(({ batch_id, warning }) =>
    warning === null ? [] : [`warning: stream ${batch_id}: ${warning}`],
  );
  return [...table, ...warnings];
}

function nodeLines({ nodes, stages }: RolloutStatus): string[] {
  const lines = section(
    'nodes',
    [
      'node',
      'state',
      'init',
      'ready',
      'running',
      'postrun',
      'waiting',
      'leased',
      'memory MiB',
      'takeovers',
      'last heartbeat',
    ],
    nodes.flatMap((node) => [nodeRow(node), ...(node.metrics.processes ?? []).map(processRow)]),
  );
  for (const { node_id, healthy, refuses } of nodes) {
    if (healthy && refuses !== null) lines.push(`Node ${node_id} takes no sessions: ${refuses}`);
  }
  if (stages.samples === 0) return lines;
  const means = [stages.init_ms, stages.running_ms, stages.postrun_ms].map(
    (ms) => `${((ms ?? 0) / 1000).toFixed(2)} s`,
  );
  lines.push(`means of ${stages.samples} sessions: INIT ${means[0]}, RUNNING ${means[1]}, POSTRUN ${means[2]}`, '');
  return lines;
}

function nodeRow(node: NodeInfo): Row {
  return [
    node.node_id,
    nodeState(node),
    `${node.metrics.init_inflight}/${node.max_init_workers}`,
    `${node.metrics.ready_depth}/${node.ready_size}`,
    `${node.metrics.run_inflight}/${node.max_run_workers}`,
    `${node.metrics.postrun_inflight}/${node.max_postrun_workers}`,
    node.metrics.postrun_queue_depth,
    node.leased_sessions,
    node.memory_mb === null ? null : `${node.leased_memory_mb}/${node.memory_mb}`,
    node.takeovers,
    node.last_heartbeat,
  ];
}

/** Returns the row of one process. It follows the row of the process's node. */
function processRow(process: NodeProcess, index: number): Row {
  return [
    `  process ${index}`,
    process.refuses === null ? process.state : 'refusing',
    process.init_inflight,
    process.ready_depth,
    process.run_inflight,
    process.postrun_inflight,
    process.postrun_queue_depth,
    null,
    null,
    null,
    process.ends === 0 ? null : `ended ${process.ends} times`,
  ];
}

function limitLines({ limits, counters }: RolloutStatus): string[] {
  const shown = Object.entries(limits).map(([name, value]) => [name, value === null ? null : String(value)]);
  return [
    ...section('limits', ['limit', 'value'], shown),
    ...section('counters', ['counter', 'count'], Object.entries(counters).filter(isNotZero)),
  ];
}

function taskLines(tasks: readonly TaskSummary[]): string[] {
  return section(
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

function section(title: string, header: readonly string[], rows: readonly Row[]): string[] {
  return [paint('bold', title), ...formatTable(header, rows).split('\n'), ''];
}

function isNotZero([, count]: readonly [string, number]): boolean {
  return count > 0;
}
