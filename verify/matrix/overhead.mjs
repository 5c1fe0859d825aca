// What a harness costs besides the model: sessions of the edit cell, one at a time, with an engine that answers at once.
import { taskOf } from './cell.mjs';
import { ProcessWatch } from './process-watch.mjs';
import { stateOf } from './report.mjs';
import { completionsOf, runTask, startStack } from './stack.mjs';

const MB = 1e6;
const SESSION_MS = 120_000;

/** What the sandbox itself costs: a session whose agent does nothing. */
const IDLE_AGENT = { harness: 'shell', custom_shell: 'true' };

/**
 * One entry for each harness variant and dialect whose edit cell passed: medians over `samples` sessions. Processes are
 * told by whose children they are, so nothing else may run meanwhile.
 */
export async function measureOverhead(reports, cells, { backend, samples, signal, note }) {
  const measured = [];
  if (samples < 1 || process.platform !== 'linux') return measured;
  for (const report of reports) {
    if (report.cell !== 'edit' || stateOf(report) !== 'passed' || signal.aborted) continue;
    try {
      const line = await measureLine(report, cells.get('edit'), { backend, samples, signal });
      measured.push(line);
      note(
        `overhead ${line.label} ${line.dialect}: ${line.wall_seconds} s, CPU ${line.cpu_seconds} s, ${line.peak_rss_mb} MB`,
      );
    } catch (error) {
      // A line without figures is no reason to lose the run.
      note(`overhead ${report.variant.label} ${report.dialect}: not measured: ${error.message}`);
    }
  }
  return measured;
}

async function measureLine(planned, cell, { backend, samples, signal }) {
  const made = cell.build(planned);
  const stack = await startStack({ backend, sim: { ...planned.row.sim, scenarios: made.scenarios } });
  const watch = new ProcessWatch();
  const run = async (task) => {
    watch.start();
    const result = await runTask(stack, task, AbortSignal.any([signal, AbortSignal.timeout(SESSION_MS)]));
    const used = await watch.end();
    const calls = await completionsOf(stack, result, signal);
    return { result, used, calls };
  };
  try {
    const task = { ...taskOf(planned, made), evaluator: null };
    const idle = await repeat(samples, () => run({ ...task, agent: IDLE_AGENT }));
    const runs = await repeat(samples, () => run(task));
    const failed = runs.find(({ result }) => result.outcome !== 'completed');
    if (failed !== undefined) throw new Error(`overhead of ${planned.variant.label}: ${failed.result.outcome}`);
    const sandboxCpu = median(idle.map(({ used }) => used.cpuSeconds));
    const seconds = (of) => Number(median(runs.map(of)).toFixed(2));
    return {
      label: planned.variant.label,
      dialect: planned.dialect,
      samples,
      calls: median(runs.map(({ calls }) => calls.length)),
      wall_seconds: seconds(({ result }) => result.timing.running_ms / 1000),
      first_call_seconds: seconds(({ calls, used }) => (Date.parse(calls[0].timestamp) - used.startedAtMs) / 1000),
      cpu_seconds: seconds(({ used }) => used.cpuSeconds - sandboxCpu),
      peak_rss_mb: Math.round(median(runs.map(({ used }) => used.peakRssBytes)) / MB),
    };
  } finally {
    watch.close();
    await stack.close();
  }
}

async function repeat(times, work) {
  const results = [];
  for (let i = 0; i < times; i++) results.push(await work());
  return results;
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
