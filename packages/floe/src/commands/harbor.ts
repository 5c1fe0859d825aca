import { FloeError } from '@floe-rl/core';
import type { Command } from 'commander';
import { agentOf } from './agent-options.ts';
import { readImageSettings } from './config-file.ts';
import { type HarnessOptions, mean, runWithHarness, withHarnessOptions } from './harbor-harness.ts';
import { type ReferenceAgent, ReferenceBench, type ReferenceResult } from './harbor-reference.ts';
import { type HarborTaskOptions, hostVariables, loadTasks, withHarborTaskOptions } from './harbor-tasks.ts';
import { interruptible } from './lifetime.ts';
import { countOption } from './options.ts';
import { formatTable, paint, printJson, printLine, printNote } from './print.ts';

type RunOptions = HarborTaskOptions &
  HarnessOptions & { samples: string; oracle?: boolean; noop?: boolean; json?: boolean };

export function registerHarbor(program: Command): void {
  const harbor = program.command('harbor').description('run and check tasks in the format of Harbor or Terminal-Bench');
  withHarnessOptions(
    withHarborTaskOptions(
      harbor.command('run <dir>').description('run a task folder, or all in a folder, with a harness and an engine'),
    )
      .option('-n, --samples <n>', 'number of sessions per task', '1')
      .option('--oracle', 'run the reference solutions instead of a harness')
      .option('--noop', 'run no agent at all')
      .option('--json', 'print JSON'),
  ).action(run);
  withHarborTaskOptions(
    harbor
      .command('check <dir>')
      .description('check that the reference solution of each task gives the reward 1, and no action gives 0'),
  )
    .option('--json', 'print JSON')
    .action(check);
}

async function run(dir: string, options: RunOptions): Promise<void> {
  const samples = countOption('--samples', options.samples);
  if (options.oracle === true && options.noop === true) {
    throw new FloeError('bad_request', '--oracle and --noop exclude each other');
  }
  const reference = options.oracle === true ? 'oracle' : options.noop === true ? 'noop' : null;
  const done = await interruptible(async (signal) => {
    if (reference !== null) {
      const agents = Array.from({ length: samples }, () => reference);
      return printReference(await runReference(dir, agents, options, signal), options.json === true);
    }
    const tasks = await loadTasks(dir, await agentOf(options), options, signal);
    const setup = {
      backend: options.backend,
      sockets: options,
      apptainerCommand: options.apptainerCommand,
      images: await readImageSettings(options),
      allowNetwork: options.allowNetwork === true,
    };
    const results = await runWithHarness(tasks, samples, { ...setup, options }, signal);
    const rows = tasks.map(({ harbor }) => {
      const own = results.filter(({ task }) => task === harbor.name);
      const outcomes = [...new Set(own.map(({ result }) => result.outcome))].join(', ');
      const rewards = own.map(({ result }) => result.reward);
      const turns = own.reduce((sum, { result }) => sum + (result.agent?.turns ?? 0), 0);
      return { task: harbor.name, sessions: own.length, outcomes, mean_reward: mean(rewards), turns };
    });
    if (options.json === true) printJson({ tasks: rows });
    else {
      const cells = rows.map((row) => [row.task, row.sessions, row.outcomes, row.mean_reward, row.turns]);
      printLine(formatTable(['task', 'sessions', 'outcomes', 'mean reward', 'turns'], cells));
    }
    for (const { task, result } of results) {
      if (result.error !== null) printNote(paint('yellow', `${task}: ${result.error.code}: ${result.error.message}`));
    }
    return results.every(({ result }) => result.reward !== null);
  });
  if (done !== true) process.exitCode ??= 1;
}

async function check(dir: string, options: HarborTaskOptions & { json?: boolean }): Promise<void> {
  const done = await interruptible(async (signal) => {
    return printReference(await runReference(dir, ['oracle', 'noop'], options, signal), options.json === true);
  });
  if (done !== true) process.exitCode ??= 1;
}

/** Runs each task once with each of `agents`. */
async function runReference(
  dir: string,
  agents: readonly ReferenceAgent[],
  options: HarborTaskOptions,
  signal: AbortSignal,
): Promise<ReferenceResult[]> {
  const tasks = await loadTasks(dir, { harness: 'shell', custom_shell: ':' }, options, signal);
  const bench = await ReferenceBench.open({
    sockets: options,
    apptainerCommand: options.apptainerCommand,
    images: await readImageSettings(options),
    uploadRoots: tasks.map(({ harbor }) => harbor.dir),
    allowNetwork: options.allowNetwork === true,
    hostVariables: hostVariables(options.passEnv),
  });
  try {
    const results: ReferenceResult[] = [];
    for (const task of tasks) {
      for (const agent of agents) results.push(await bench.run(task, agent, signal));
    }
    return results;
  } finally {
    await bench.close();
  }
}

const EXPECTED: Readonly<Record<ReferenceAgent, number>> = { oracle: 1, noop: 0 };

/** Prints the results of reference agents. Returns whether every reward is the expected one. */
function printReference(results: readonly ReferenceResult[], asJson: boolean): boolean {
  const isExpected = ({ agent, reward }: ReferenceResult): boolean => reward === EXPECTED[agent];
  const wrong = results.filter((result) => !isExpected(result));
  if (asJson) printJson({ results, wrong: wrong.length });
  else {
    const rows = results.map((result) => {
      const verdict = isExpected(result) ? 'as expected' : `expected ${EXPECTED[result.agent]}`;
      return [result.task, result.agent, result.reward, result.seconds, verdict];
    });
    printLine(formatTable(['task', 'agent', 'reward', 'seconds', 'verdict'], rows));
    for (const { task, agent, problem } of wrong)
      printNote(paint('yellow', `${task} (${agent}): ${problem ?? 'no error'}`));
  }
  return wrong.length === 0;
}
