// Plays many gateway nodes in one process: their heartbeats, leases and results over HTTP, without running any sessions. The only argument is
// JSON of FakeNodesArguments.
import { setMaxListeners } from 'node:events';
import { NodeApi } from '@floe-rl/client';
import { newId, systemClock } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import { type EngineInfo, engineInfoSchema, type Heartbeat, type Lease } from '@floe-rl/core/schema';
import { inParallel, serveBench } from '../child.ts';
import { ENGINES, type EngineReports, type FakeNodesArguments, HEARTBEAT_SECONDS } from './replica.ts';

const { urls, count } = JSON.parse(process.argv[2] ?? '') as FakeNodesArguments;

const METRICS = { init_inflight: 0, ready_depth: 0, run_inflight: 0, postrun_queue_depth: 0, postrun_inflight: 0 };
/** Stage sizes that every node registers. They are large enough for all sessions that the bench leases to it. */
const SIZE = 100;
/** Number of calls that run concurrently where the bench measures the calls themselves. */
const CALLERS = 16;
const LEASE_WAIT_SECONDS = 20;
const RETRY_SECONDS = 60;
const TRAJECTORY = Buffer.from(JSON.stringify({ traces: [], filler: 'x'.repeat(2_000) }));

/** The engines of every node, as a vLLM server is reported. */
const engines: readonly EngineInfo[] = Array.from({ length: ENGINES }, (_, i) =>
  engineInfoSchema.parse({
    ...{ engine_id: `vllm-gpu-node-${i}-8000`, kind: 'vllm', base_url: `http://gpu-node-${i}:8000`, pool: 'default' },
    ...{ model: 'Qwen/Qwen3-30B-A3B', server_version: '0.32.0', max_model_len: 32_768, logprobs_mode: 'processed' },
    ...{ policy_version: '17', healthy: true, streaming: true, inflight: 0, max_concurrency: null },
    capabilities: {
      ...{ token_ids: true, token_input: 'generate', version_spans: false, pause: true, abort: true, cache_salt: true },
      notes: [],
      template: {
        ...{ close_ids: [151_645, 198], call_end: { ids: [151_658], each: null }, tail_render: true },
        ...{ thinking: { tool_results: 'kept', user_message: 'dropped' }, fingerprint: 'a'.repeat(64) },
      },
    },
  }),
);

/** Returns the report of a node whose calls in flight have changed, and with `every` also the state of its engines. */
function reportOf(reports: EngineReports): Heartbeat['engines'] {
  if (reports === 'none') return null;
  const changed = { inflight: beats % 16, ...(reports === 'every' ? { policy_version: String(beats) } : {}) };
  const info = engines.map((engine) => ({ ...engine, ...changed }));
  return { revision: 0, heard: 0, info, problems: [], unpaused: [] };
}

/** A node without a process of its own. `held` are the sessions that it reports as running. */
class FakeNode {
  readonly api: NodeApi;
  readonly held: Lease[] = [];

  constructor(index: number) {
    const url = urls[index % urls.length] as string;
    // On a machine that is busy with other work, a call may wait too long for the database and is then repeated.
    const options = { url, retrySeconds: RETRY_SECONDS, clock: systemClock };
    this.api = new NodeApi({ ...options, nodeId: `node-${index}`, instance: newId('proc', systemClock) });
  }

  async register(): Promise<void> {
    await this.api.register({
      ...{ host: null, dispatch_policy: 'pipeline', gateway_url: null, memory_mb: null },
      ...{ max_init_workers: SIZE, ready_size: SIZE, max_run_workers: SIZE, max_postrun_workers: SIZE },
    });
  }

  async beat(waitSeconds: number, reports: EngineReports, signal?: AbortSignal): Promise<void> {
    const sessions = this.held.map(({ session_id, epoch }) => ({
      ...{ session_id, epoch, status: 'RUNNING' as const, turns: 0, sampled_tokens: 0 },
    }));
    const body = { metrics: METRICS, refuses: null, sessions, engines: reportOf(reports), wait_seconds: waitSeconds };
    await this.api.heartbeat(body, signal);
    beats++;
  }

  async lease(slots: number, waitSeconds: number, signal?: AbortSignal): Promise<void> {
    this.held.push(...(await this.api.lease({ slots, wait_seconds: waitSeconds }, signal)));
  }

  async deliver(lease: Lease): Promise<void> {
    const fields = { reward: 1, trace_count: 1, trainable_tokens: 3, completion_count: 1, node_id: this.api.nodeId };
    const summary = sessionSummary(lease, 'completed', fields);
    await this.api.deliverResult({ summary, trajectory: TRAJECTORY, completions: null, artifacts: null });
  }
}

const nodes = Array.from({ length: count }, (_, index) => new FakeNode(index));
let stopping = new AbortController();
let loops: Promise<unknown>[] = [];
/** Number of heartbeats that the server has answered. */
let beats = 0;

/**
 * Repeats `call` until `stop` is requested. The first calls of the nodes are spread over `spreadSeconds`, as the first calls of real nodes
 * are.
 */
async function repeat(
  index: number,
  spreadSeconds: number,
  call: (signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const { signal } = stopping;
  await new Promise<void>((resolve) => {
    systemClock.schedule((index / nodes.length) * spreadSeconds * 1000, resolve);
  });
  while (!signal.aborted) {
    try {
      await call(signal);
    } catch (thrown) {
      if (!signal.aborted) throw thrown;
    }
  }
}

await inParallel(nodes.length, CALLERS, (index) => (nodes[index] as FakeNode).register());
serveBench(
  {},
  {
    /** Starts the heartbeats of all nodes, and their held requests for leases when `leases` is true. */
    start({ leases, engines: reports }: { readonly leases: boolean; readonly engines: EngineReports }) {
      stopping = new AbortController();
      setMaxListeners(0, stopping.signal);
      loops = nodes.flatMap((node, index) => [
        repeat(index, HEARTBEAT_SECONDS, (signal) => node.beat(HEARTBEAT_SECONDS, reports, signal)),
        ...(leases ? [repeat(index, HEARTBEAT_SECONDS, (signal) => node.lease(1, LEASE_WAIT_SECONDS, signal))] : []),
      ]);
      return {};
    },
    beats: () => ({ beats }),
    async stop() {
      stopping.abort(new Error('stopped'));
      await Promise.all(loops);
      return {};
    },
    /** Leases `each` sessions to every node: with a call for each session, or with one call for all of them. */
    async lease({ each, atOnce }: { readonly each: number; readonly atOnce: boolean }) {
      const [calls, slots] = atOnce ? [1, each] : [each, 1];
      await inParallel(nodes.length * calls, CALLERS, (i) => (nodes[i % nodes.length] as FakeNode).lease(slots, 0));
      return { held: nodes.reduce((sum, node) => sum + node.held.length, 0) };
    },
    /** Delivers the results of `each` of the sessions that every node holds. */
    async deliver({ each }: { readonly each: number }) {
      const work = nodes.flatMap((node) => node.held.splice(0, each).map((lease) => () => node.deliver(lease)));
      await inParallel(work.length, CALLERS, async (i) => work[i]?.());
      return { delivered: work.length };
    },
  },
  async () => {
    await Promise.all(nodes.map((node) => node.api.close()));
  },
);
