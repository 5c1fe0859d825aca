import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { assetPath, removeTree, systemClock, undoAll } from '@floe-rl/core';
import type { RolloutEvent, RuntimeBackend, SessionResult, SessionStatus } from '@floe-rl/core/schema';
import { removeStateDir } from '@floe-rl/node';
import { createLogger } from '@floe-rl/observe';
import { bundledTokenizerPath, loadScenarios, SIM_MODEL, type SimServer, startSim } from '@floe-rl/sim';
import { startNode, startServer } from '../up/stack.ts';
import { harnessDir } from './home.ts';
import { paint } from './print.ts';
import { hasProgram } from './programs.ts';
import { readTaskFile } from './yaml-file.ts';

export type DemoTask = { readonly name: string; readonly taskFile: string; readonly scenarioFile: string };
/** A demo task that is skipped because this machine lacks the program `missing`. */
type SkippedTask = { readonly name: string; readonly missing: string };

/** Names of the demo's tasks in examples/tasks, and the programs that the tests of each task need. */
const TASKS = [
  { name: 'js-pagination', needs: [] },
  { name: 'py-roman', needs: ['python3'] },
  { name: 'sh-slug', needs: ['sed'] },
  { name: 'c-ring', needs: ['cc'] },
] as const;

/** Returns the demo tasks that this machine can run, and the skipped ones, each with the program that is missing. */
export function demoTasks(backend: RuntimeBackend): { tasks: DemoTask[]; skipped: SkippedTask[] } {
  const tasks: DemoTask[] = [];
  const skipped: SkippedTask[] = [];
  for (const { name, needs } of TASKS) {
    const missing = needs.find((program) => !hasProgram(program, backend));
    if (missing !== undefined) skipped.push({ name, missing });
    else tasks.push({ name, taskFile: example(name, 'task.yaml'), scenarioFile: example(name, 'scenario.yaml') });
  }
  return { tasks, skipped };
}

function example(name: string, file: string): string {
  return join(assetPath(import.meta.url, 'examples/tasks'), name, file);
}

/** The components of the demo, all in this process: the simulated engine, the rollout server and the gateway node. */
export type DemoStack = {
  readonly sim: SimServer;
  readonly serverUrl: string;
  readonly token: string;
  close(): Promise<void>;
};

/** The results of all sessions of the demo, and a function that returns the name of a task by its id. */
export type DemoRun = { readonly results: readonly SessionResult[]; readonly taskName: (taskId: string) => string };

/**
 * Removes the files of an earlier demo in `dir`, and the leftovers of its sandboxes on this machine if the demo was killed.
 */
export async function removeDemo(dir: string): Promise<void> {
  await removeStateDir(gatewayDir(dir), systemClock);
  await removeTree(dir);
}

function gatewayDir(dir: string): string {
  return join(dir, 'gateway');
}

export async function startDemo(dir: string, tasks: readonly DemoTask[], backend: RuntimeBackend): Promise<DemoStack> {
  const log = createLogger('floe-demo', process.env.FLOE_LOG_LEVEL ?? 'error');
  const token = randomBytes(32).toString('base64url');
  const closers: (() => Promise<unknown>)[] = [];
  const close = async (): Promise<void> => {
    await undoAll(closers);
  };
  try {
    const sim = await startSim({
      scaleOut: true,
      scenarios: await loadScenarios(tasks.map((task) => task.scenarioFile)),
    });
    closers.push(() => sim.close());
    const server = await startServer(
      join(dir, 'server'),
      { port: 0, token, tokenizers: { [SIM_MODEL]: bundledTokenizerPath() } },
      log,
    );
    closers.push(() => server.close());
    const cores = cpus().length;
    const node = await startNode(
      {
        node_id: 'demo',
        server_url: server.url,
        token,
        state_dir: gatewayDir(dir),
        harness_dir: harnessDir(),
        pools: { init: cores, ready: cores, run: 2 * cores, postrun: cores },
        engines: [{ base_url: sim.url }],
        default_backend: backend,
        upload_roots: tasks.map((task) => dirname(task.taskFile)),
      },
      log,
    );
    closers.push(() => node.close());
    return { sim, serverUrl: server.url, token, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Submits every demo task, prints progress, and reads the results by cursor as a trainer does. */
export async function runDemo(stack: DemoStack, tasks: readonly DemoTask[], samples: number): Promise<DemoRun> {
  const client = new FloeClient({ url: stack.serverUrl, token: stack.token });
  try {
    const names = new Map<string, string>();
    const taskName = (taskId: string): string => names.get(taskId) ?? taskId;
    const progress = new DemoProgress(samples * tasks.length, taskName);
    const stop = new AbortController();
    const watching = watch(client, progress, stop.signal);
    for (const task of tasks) {
      const request = await readTaskFile(task.taskFile);
      const reply = await client.submit({ ...request, task_id: task.name, num_samples: samples });
      names.set(reply.task_id, task.name);
    }
    const results: SessionResult[] = [];
    for await (const result of client.results()) {
      results.push(result);
      if (results.length === samples * tasks.length) break;
    }
    stop.abort();
    await watching;
    return { results, taskName };
  } finally {
    await client.close();
  }
}

async function watch(client: FloeClient, progress: DemoProgress, signal: AbortSignal): Promise<void> {
  try {
    for await (const event of client.events(signal)) progress.update(event);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Writes `traces.jsonl`, which has one trace per line, and for each session a JSON file with its whole result. */
export async function writeTraces(dir: string, run: DemoRun): Promise<void> {
  await mkdir(dir, { recursive: true });
  const lines: string[] = [];
  for (const result of run.results) {
    const name = `${run.taskName(result.task_id)}-${result.sample_index}`;
    await writeFile(join(dir, `${name}.json`), JSON.stringify(result));
    for (const trace of result.trajectory?.traces ?? []) {
      lines.push(JSON.stringify({ session_id: result.session_id, task_id: result.task_id, ...trace }));
    }
  }
  await writeFile(join(dir, 'traces.jsonl'), `${lines.join('\n')}\n`);
}

const STAGES: readonly SessionStatus[] = ['QUEUED', 'LEASED', 'INIT', 'READY', 'RUNNING', 'POSTRUN'];

/**
 * Prints a line to stderr for each session that ends. On a terminal, it also prints a status line below those lines, updated by every
 * event.
 */
class DemoProgress {
  private readonly total: number;
  private readonly taskName: (taskId: string) => string;
  private readonly states = new Map<string, RolloutEvent & { type: 'session.state_changed' }>();
  private readonly live = process.stderr.isTTY === true;
  private ended = 0;

  constructor(total: number, taskName: (taskId: string) => string) {
    this.total = total;
    this.taskName = taskName;
  }

  get done(): boolean {
    return this.ended >= this.total;
  }

  update(event: RolloutEvent): void {
    if (event.type !== 'session.state_changed') return;
    const previous = this.states.get(event.session_id);
    if (previous?.outcome) return;
    this.states.set(event.session_id, event);
    if (event.outcome !== null) {
      this.ended++;
      this.write(
        `  ${this.mark(event)} ${this.taskName(event.task_id)} #${event.sample_index}: ${this.summary(event)}\n`,
      );
    }
    if (this.live && !this.done) this.write(this.statusLine());
  }

  private write(text: string): void {
    process.stderr.write(this.live ? `\r\x1b[K${text}` : text);
  }

  private mark(event: RolloutEvent & { type: 'session.state_changed' }): string {
    if (event.reward === null) return paint('yellow', '?');
    return event.reward > 0 ? paint('green', '✓') : paint('red', '✗');
  }

  private summary(event: RolloutEvent & { type: 'session.state_changed' }): string {
    return `${event.outcome}, reward ${event.reward ?? 'none'}, ${event.turns} turns, ${event.sampled_tokens} tokens`;
  }

  private statusLine(): string {
    const counts = STAGES.map(
      (stage) => [stage, [...this.states.values()].filter((event) => event.status === stage).length] as const,
    );
    const shown = counts.filter(([, count]) => count > 0).map(([stage, count]) => `${stage.toLowerCase()} ${count}`);
    return paint('dim', `  ${this.ended}/${this.total} done${shown.length > 0 ? `, ${shown.join(', ')}` : ''}`);
  }
}
