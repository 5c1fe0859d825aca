// Measures the time, CPU and memory that a harness itself uses: runs sessions of the test case `edit`, one after another, with an engine
// that replies immediately.

import { abortAfter, messageOf, systemClock } from '@floe-rl/core';
import type { CompletionRecord, RuntimeBackend, SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { median } from '../../bench/report.ts';
import { taskOf } from './cell.ts';
import { editCell } from './cells/edit.ts';
import type { RunnableCell } from './plan.ts';
import { type ProcessUsage, ProcessWatch } from './process-watch.ts';
import { type Overhead, type Report, stateOf } from './report.ts';
import { completionsOf, runTask, startStack } from './stack.ts';

const MB = 1e6;
const SESSION_MS = 120_000;

/** An agent that ends immediately. Its session measures the CPU time of the sandbox alone, which is subtracted. */
const IDLE_AGENT: TaskRequestInput['agent'] = { harness: 'shell', custom_shell: 'true' };

export type OverheadOptions = {
  readonly backend: RuntimeBackend;
  /** Number of sessions that are measured for each row of the overhead table. */
  readonly samples: number;
  readonly signal: AbortSignal;
  readonly onLine: (text: string) => void;
};

type MeasuredSession = {
  readonly result: SessionResult;
  readonly usage: ProcessUsage;
  readonly calls: readonly CompletionRecord[];
};

/**
 * Measures each harness variant and dialect that passed the test case `edit`. Returns an empty list on systems other than Linux. No other
 * session may run during the measurement. All descendants of the spawn helper (the child process of the node that starts sandboxes) count as
 * processes of the measured session.
 */
export async function measureOverhead(reports: readonly Report[], options: OverheadOptions): Promise<Overhead[]> {
  const measured: Overhead[] = [];
  if (options.samples < 1 || process.platform !== 'linux') return measured;
  for (const report of reports) {
    if (report.skip !== null || report.cell !== 'edit' || stateOf(report) !== 'passed') continue;
    if (options.signal.aborted) break;
    try {
      const line = await measureLine(report, options);
      measured.push(line);
      options.onLine(
        `overhead ${line.label} ${line.dialect}: ${line.wall_seconds} s, CPU ${line.cpu_seconds} s, ${line.peak_rss_mb} MB`,
      );
    } catch (error) {
      // A measurement that fails is reported, and the remaining harnesses are still measured.
      const reason = messageOf(error);
      options.onLine(`overhead ${report.variant.label} ${report.dialect}: not measured: ${reason}`);
    }
  }
  return measured;
}

async function measureLine(planned: RunnableCell, { backend, samples, signal }: OverheadOptions): Promise<Overhead> {
  const plan = editCell.build(planned);
  const stack = await startStack({ backend, sim: { ...planned.row.sim, scenarios: plan.scenarios } });
  const watch = new ProcessWatch();
  const measure = async (task: TaskRequestInput): Promise<MeasuredSession> => {
    const limit = abortAfter(
      systemClock,
      SESSION_MS,
      () => new Error(`no result within ${SESSION_MS / 1000} s`),
      signal,
    );
    try {
      watch.start();
      const result = await runTask(stack, task, limit.signal);
      const usage = await watch.end();
      return { result, usage, calls: await completionsOf(stack, result, signal) };
    } finally {
      limit.release();
    }
  };
  try {
    const task = { ...taskOf(planned, plan), evaluator: null };
    const idle = await repeat(samples, () => measure({ ...task, agent: IDLE_AGENT }));
    const sessions = await repeat(samples, () => measure(task));
    return overheadOf(planned, idle, sessions);
  } finally {
    watch.close();
    await stack.close();
  }
}

function overheadOf(
  { variant, dialect }: RunnableCell,
  idle: readonly MeasuredSession[],
  sessions: readonly MeasuredSession[],
): Overhead {
  const failed = sessions.find(({ result }) => result.outcome !== 'completed');
  if (failed !== undefined) throw new Error(`overhead of ${variant.label}: ${failed.result.outcome}`);
  const middle = (values: readonly number[]): number => median(values) ?? Number.NaN;
  const sandboxCpu = middle(idle.map(({ usage }) => usage.cpuSeconds));
  const seconds = (of: (session: MeasuredSession) => number): number => Number(middle(sessions.map(of)).toFixed(2));
  return {
    label: variant.label,
    dialect,
    samples: sessions.length,
    calls: middle(sessions.map(({ calls }) => calls.length)),
    wall_seconds: seconds(({ result }) => (result.timing.running_ms ?? 0) / 1000),
    first_call_seconds: seconds(firstCallSeconds),
    cpu_seconds: seconds(({ usage }) => usage.cpuSeconds - sandboxCpu),
    peak_rss_mb: Math.round(middle(sessions.map(({ usage }) => usage.peakRssBytes)) / MB),
  };
}

/**
 * Returns the time in seconds from the start of the harness process to its first model call. Throws an Error when no call was recorded or
 * no process of the harness was found.
 */
function firstCallSeconds({ calls, usage }: MeasuredSession): number {
  const [first] = calls;
  if (first === undefined || usage.startedAtMs === null) throw new Error('no call or no process was seen');
  return (Date.parse(first.timestamp) - usage.startedAtMs) / 1000;
}

async function repeat<T>(times: number, work: () => Promise<T>): Promise<T[]> {
  const results: T[] = [];
  for (let i = 0; i < times; i++) results.push(await work());
  return results;
}
