import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { parseAs, parseJson } from '@floe-rl/core';
import {
  type CompletionRecord,
  completionRecordSchema,
  type EngineKind,
  type RuntimeBackend,
  type SessionResult,
  type TaskRequestInput,
} from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { type SimConfigInput, type SimServer, startSim } from '@floe-rl/sim';
import { harnessDir } from '#floe/commands/home';
import { startNode, startServer } from '#floe/up/stack';

const VERSION_NAME = 'matrix';
/**
 * Default context window of the simulated engine in tokens. It is large enough for all sessions, because the longest prompt of a harness
 * has about 30,000 tokens. The test case `compaction` sets a smaller window.
 */
const WINDOW_TOKENS = 131_072;

export type StackOptions = {
  /** Settings of the simulated engine. */
  readonly sim: SimConfigInput;
  /** The kind of engine (such as `vllm` or `sglang`) as which floe addresses the simulated engine. The default is `vllm`. */
  readonly kind?: EngineKind;
  /** The runtime back end in which the agents' sandboxes run. */
  readonly backend: RuntimeBackend;
};

/** A simulated engine, a rollout server and a gateway node. All three run in this process. */
export type Stack = { readonly client: FloeClient; readonly sim: SimServer; close(): Promise<void> };

export async function startStack({ sim: simOptions, kind = 'vllm', backend }: StackOptions): Promise<Stack> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-matrix-'));
  const closers = [() => rm(dir, { recursive: true, force: true, maxRetries: 3 })];
  const close = async (): Promise<void> => {
    for (let closeNext = closers.pop(); closeNext !== undefined; closeNext = closers.pop()) await closeNext();
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

/** Submits a task with one sample and resolves to its result. Rejects with the signal's reason when `signal` aborts. */
export async function runTask({ client }: Stack, task: TaskRequestInput, signal: AbortSignal): Promise<SessionResult> {
  const { session_ids } = await client.submit(task, signal);
  for await (const result of client.results({ signal })) if (result.session_id === session_ids[0]) return result;
  throw new Error('the server ended the stream of results');
}

export async function completionsOf(
  { client }: Stack,
  result: SessionResult,
  signal: AbortSignal,
): Promise<CompletionRecord[]> {
  if (result.completion_count === 0) return [];
  const body = await client.completions(result.session_id, { signal });
  return parseAs(completionRecordSchema.array(), parseJson(body), 'completions');
}
