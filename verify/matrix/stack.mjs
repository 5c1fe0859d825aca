// A simulated engine, a rollout server and a node for one cell, in this process; each cell has settings of its own.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const VERSION_NAME = 'matrix';
/** Nobody runs out of it but where a cell wants that: the largest prompt of a harness has some 30,000 tokens. */
const WINDOW_TOKENS = 131_072;

/** `sim`: settings of the simulated engine; `kind`: the API that it is asked by; `backend`: of the sandboxes. */
export async function startStack({ sim: simOptions, kind = 'vllm', backend }) {
  const { FloeClient } = await import('../dist/client/index.js');
  const { startNode, startServer } = await import('../dist/cli/stack.js');
  const { harnessDir } = await import('../dist/cli/home.js');
  const { silentLogger } = await import('../dist/observe/log.js');
  const { startSim } = await import('../dist/sim/server.js');

  const dir = await mkdtemp(join(tmpdir(), 'floe-matrix-'));
  const closers = [() => rm(dir, { recursive: true, force: true, maxRetries: 3 })];
  const close = async () => {
    for (let undo = closers.pop(); undo !== undefined; undo = closers.pop()) await undo();
  };
  try {
    const sim = await startSim({ weightVersion: VERSION_NAME, maxModelLen: WINDOW_TOKENS, ...simOptions });
    closers.push(() => sim.close());
    const server = await startServer(join(dir, 'server'), { port: 0 }, silentLogger);
    closers.push(() => server.close());
    const node = await startNode(
      {
        node_id: 'matrix',
        server_url: server.url,
        state_dir: join(dir, 'gateway'),
        harness_dir: harnessDir(),
        engines: [{ base_url: sim.url, kind }],
        default_backend: backend,
      },
      silentLogger,
    );
    closers.push(() => node.close());
    const client = new FloeClient({ url: server.url });
    closers.push(() => client.close());
    return { client, sim, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The result of a task with one sample. */
export async function runTask({ client }, task, signal) {
  const { session_ids } = await client.submit(task, signal);
  for await (const result of client.results({ signal })) if (result.session_id === session_ids[0]) return result;
  throw new Error('the server ended the stream of results');
}

export async function completionsOf({ client }, result, signal) {
  if (result.completion_count === 0) return [];
  return JSON.parse((await client.completions(result.session_id, { signal })).toString('utf8'));
}
