import { randomBytes } from 'node:crypto';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { FloeClient } from '../../client/index.ts';
import { createLogger } from '../../observe/log.ts';
import type { RuntimeBackend, SessionResult } from '../../schema/index.ts';
import { loadScenarios, type SimServer, startSim } from '../../sim/index.ts';
import { harnessDir } from '../home.ts';
import { startNode, startServer } from '../stack.ts';
import { readTaskFile } from '../task-file.ts';
import { DemoProgress } from './progress.ts';
import type { DemoTask } from './tasks.ts';

/** Everything that the demo runs on, in this process. */
export type DemoStack = {
  readonly sim: SimServer;
  readonly serverUrl: string;
  readonly token: string;
  close(): Promise<void>;
};

export type DemoRun = { readonly results: readonly SessionResult[]; readonly nameOf: (taskId: string) => string };

export async function startDemo(dir: string, tasks: readonly DemoTask[], backend: RuntimeBackend): Promise<DemoStack> {
  const log = createLogger('floe-demo', process.env.FLOE_LOG_LEVEL ?? 'error');
  const token = randomBytes(32).toString('base64url');
  const closers: (() => Promise<unknown>)[] = [];
  const close = async (): Promise<void> => {
    for (let undo = closers.pop(); undo !== undefined; undo = closers.pop()) await undo();
  };
  try {
    const sim = await startSim({
      scaleOut: true,
      scenarios: await loadScenarios(tasks.map((task) => task.scenarioFile)),
    });
    closers.push(() => sim.close());
    const server = await startServer(join(dir, 'server'), { port: 0, token }, log);
    closers.push(() => server.close());
    const cores = cpus().length;
    const node = await startNode(
      {
        node_id: 'demo',
        server_url: server.url,
        token,
        state_dir: join(dir, 'gateway'),
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

/** Submits every task, shows progress, and collects the results by cursor as a trainer would. */
export async function runDemo(stack: DemoStack, tasks: readonly DemoTask[], samples: number): Promise<DemoRun> {
  const client = new FloeClient({ url: stack.serverUrl, token: stack.token });
  try {
    const names = new Map<string, string>();
    const nameOf = (taskId: string): string => names.get(taskId) ?? taskId;
    const progress = new DemoProgress(samples * tasks.length, nameOf);
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
    return { results, nameOf };
  } finally {
    await client.close();
  }
}

async function watch(client: FloeClient, progress: DemoProgress, signal: AbortSignal): Promise<void> {
  try {
    for await (const event of client.events(signal)) progress.see(event);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}
