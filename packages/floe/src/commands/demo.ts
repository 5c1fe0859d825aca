import { join, relative } from 'node:path';
import { acquireLock, ensureWritableDir, FloeError } from '@floe-rl/core';
import type { RuntimeBackend, SessionResult } from '@floe-rl/core/schema';
import { installHarness } from '@floe-rl/node';
import { checkAgainstLedger, type LedgerReport } from '@floe-rl/sim';
import type { Command } from 'commander';
import { type BackendChoice, chooseBackend, isolationWarning, probeBackends } from './backend.ts';
import { dashboardLink, openBrowser } from './dashboard-link.ts';
import { type DemoRun, type DemoTask, demoTasks, removeDemo, runDemo, startDemo, writeTraces } from './demo-run.ts';
import { harnessDir } from './home.ts';
import { interruptible, waitForSignal } from './lifetime.ts';
import { countOption, listed } from './options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';
import { findProgram } from './programs.ts';

/** The runtimes that the demo can use: their sandboxes have the programs of this machine. */
const DEMO_BACKENDS = ['bubblewrap', 'local'] as const satisfies readonly RuntimeBackend[];

type Options = { keep?: boolean; open?: boolean; json?: boolean; samples: string; backend?: RuntimeBackend };

export function registerDemo(program: Command): void {
  program
    .command('demo')
    .description('let a real agent repair small repositories with the simulated engine, and check every token')
    .option('--samples <n>', 'number of sessions per task', '4')
    .option('--keep', 'keep the server and its dashboard running afterwards (default: on a terminal)')
    .option('--no-keep', 'end after the sessions')
    .option('--open', 'open the dashboard in the browser')
    .option('--backend <name>', `${listed(DEMO_BACKENDS)} (default: bubblewrap if it works)`)
    .option('--json', 'print a summary as JSON')
    .action(demo);
}

async function demo(options: Options): Promise<void> {
  const samples = countOption('--samples', options.samples);
  const home = join(process.cwd(), '.floe');
  const dir = join(home, 'demo');
  ensureWritableDir(home, 'run the demo in a directory that you can write to');
  const choice: BackendChoice =
    options.backend === undefined ? await chooseBackend() : await requireBackend(options.backend);
  await requireGit(choice.backend);
  const { tasks, skipped } = demoTasks(choice.backend);
  for (const { name, missing } of skipped)
    printNote(paint('yellow', `Task ${name} is skipped because ${missing} is not installed.`));
  if (choice.problem !== null) printNote(paint('yellow', isolationWarning(choice.problem)));
  const log = (text: string): void => printNote(`▸ ${text}`);
  const installed = await interruptible((signal) => installHarness('pi', { cacheDir: harnessDir(), log, signal }));
  if (installed === null) return printNote('Interrupted. Run the command again to continue.');

  // Locks the directory, so that this demo cannot delete the files of another demo that is still running.
  const unlock = await acquireLock(join(home, 'demo.lock'), `the demo directory ${dir}`);
  try {
    await removeDemo(dir);
    await runIn(dir, { tasks, samples, backend: choice.backend, options });
  } finally {
    await unlock();
  }
}

type Job = {
  readonly tasks: readonly DemoTask[];
  readonly samples: number;
  readonly backend: RuntimeBackend;
  readonly options: Options;
};

async function runIn(dir: string, { tasks, samples, backend, options }: Job): Promise<void> {
  const stack = await startDemo(dir, tasks, backend);
  try {
    const link = dashboardLink(stack.serverUrl, stack.token);
    printNote(`▸ watch it at ${link}`);
    if (options.open) openBrowser(link);
    printNote(`▸ ${tasks.length} tasks × ${samples} samples, pi in ${backend}, engine ${stack.sim.url}`);
    const run = await runDemo(stack, tasks, samples);
    const report = checkAgainstLedger(run.results, stack.sim.ledger.entries(), 'processed');
    await writeTraces(join(dir, 'traces'), run);
    printSummary(run, report, tasks, join(dir, 'traces'), options.json === true);
    if (options.keep ?? isWatched(options)) await keepServing(stack, link);
    if (report.mismatches.length > 0 || run.results.some((result) => result.outcome !== 'completed'))
      process.exitCode = 1;
  } finally {
    await stack.close();
  }
}

/** Throws `setup_failed` when sandboxes cannot run git. Every task of the demo prepares its repository with git. */
async function requireGit(backend: RuntimeBackend): Promise<void> {
  const { problem } = await findProgram('git', backend);
  if (problem === null) return;
  throw new FloeError('setup_failed', `the demo needs git, but ${problem.problem}; install it with: ${problem.remedy}`);
}

/**
 * Tests a runtime that the user chose. Throws `bad_request` for an unknown runtime, and `runtime_unavailable` for a runtime that does not work
 * on this machine.
 */
async function requireBackend(backend: RuntimeBackend): Promise<BackendChoice> {
  const problem = (await probeBackends()).get(backend)?.problem;
  if (problem === undefined) throw new FloeError('bad_request', `--backend: ${backend} is not a known runtime`);
  if (problem !== null)
    throw new FloeError('runtime_unavailable', `${backend}: ${problem.problem}. Remedy: ${problem.remedy}`);
  return { backend, problem: null };
}

/** Whether a person waits for the demo, who may want to read the dashboard afterwards. */
function isWatched({ json }: Options): boolean {
  return json !== true && process.stdin.isTTY === true && process.stdout.isTTY === true;
}

async function keepServing(stack: Awaited<ReturnType<typeof startDemo>>, link: string): Promise<void> {
  printLine();
  printLine(`dashboard       ${link}`);
  printLine(`rollout server  ${stack.serverUrl}`);
  printLine(`engine          ${stack.sim.url}  (ledger: ${stack.sim.url}/__sim/ledger)`);
  printLine(`use it          export FLOE_URL=${stack.serverUrl} FLOE_TOKEN=${stack.token}`);
  printLine('                npx floe status; npx floe submit examples/tasks/py-roman/task.yaml --watch');
  printLine('Press Ctrl-C to stop.');
  await waitForSignal();
}

/**
 * Prints a table of the results of all tasks, the sessions' errors, and the folder of the traces. Also prints the differences between the
 * traces and the tokens that the simulated engine sampled.
 */
function printSummary(
  run: DemoRun,
  report: LedgerReport,
  tasks: readonly DemoTask[],
  traceDir: string,
  asJson: boolean,
): void {
  const { results } = run;
  const completed = results.filter((result) => result.outcome === 'completed').length;
  const meanReward = mean(results);
  if (asJson) {
    printJson({
      sessions: results.length,
      completed,
      mean_reward: meanReward,
      traces: report.traces,
      trainable_tokens: report.trainable_tokens,
      exact_context_tokens: report.exact_context_tokens,
      ledger_mismatches: report.mismatches.length,
      trace_dir: traceDir,
    });
    return;
  }
  printLine();
  printLine(
    formatTable(
      ['task', 'completed', 'mean reward', 'turns', 'traces', 'trainable tokens', 'seconds each'],
      tasks.map((task) => taskRow(task, run)),
    ),
  );
  printLine();
  for (const result of results.filter((other) => other.error !== null)) {
    printLine(paint('yellow', `${result.session_id}: ${result.error?.code}: ${result.error?.message}`));
  }
  for (const mismatch of report.mismatches.slice(0, 10)) {
    printLine(
      paint('red', `${mismatch.session_id} ${mismatch.completion_id ?? ''} ${mismatch.what}: ${mismatch.detail}`),
    );
  }
  const share = report.trainable_tokens === 0 ? 0 : (100 * report.exact_context_tokens) / report.trainable_tokens;
  if (report.trainable_tokens > 0) {
    printLine(
      `Every trainable token was compared with the engine's ledger; ${share.toFixed(1)} % were sampled in exactly the context that they are trained in.`,
    );
  }
  printLine(
    `traces: ${relative(process.cwd(), traceDir)}/traces.jsonl, with one file per session in the same directory`,
  );
  printLine(
    `demo: ${results.length} sessions, ${completed} completed, mean reward ${meanReward?.toFixed(3) ?? 'none'}, ` +
      `${report.traces} traces, ${report.trainable_tokens} trainable tokens, ledger mismatches ${report.mismatches.length}`,
  );
}

function taskRow(task: DemoTask, run: DemoRun): (string | number | null)[] {
  const results = run.results.filter((result) => run.taskName(result.task_id) === task.name);
  const sum = (of: (result: SessionResult) => number): number =>
    results.reduce((total, result) => total + of(result), 0);
  return [
    task.name,
    `${results.filter((result) => result.outcome === 'completed').length}/${results.length}`,
    Number((mean(results) ?? 0).toFixed(3)),
    sum((result) => result.agent?.turns ?? 0),
    sum((result) => result.trace_count),
    sum((result) => result.trainable_tokens),
    Number((sum((result) => result.timing.total_ms) / 1000 / Math.max(results.length, 1)).toFixed(2)),
  ];
}

function mean(results: readonly SessionResult[]): number | null {
  const rewards = results.map((result) => result.reward).filter((reward) => reward !== null);
  return rewards.length === 0 ? null : rewards.reduce((total, reward) => total + reward, 0) / rewards.length;
}
