import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient, NodeApi } from '@floe-rl/client';
import { type RandomSource, seededRandom } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import {
  type Audit,
  type CallSums,
  type Lease,
  type Outcome,
  type SessionResult,
  type SessionSummary,
  type TaskRequestInput,
  timeIntervalOf,
} from '@floe-rl/core/schema';
import { silentLogger } from '@floe-rl/observe';
import { startServer } from '#floe/up/stack';

const SAMPLES = 8;
/** Number of sessions that are leased and delivered at a time. */
const SLOTS = 64;
const HARNESSES = ['pi', 'codex', 'shell'] as const;
const SOURCES = ['gsm8k', 'swe', 'terminal'] as const;

/**
 * Id of a batch stream. One batch with `BATCH_GROUPS` groups was handed out at the version `BATCH_VERSION`. The stream's bound is
 * `BATCH_BOUND`.
 */
export const BATCH_STREAM = 'simulated';
const BATCH_GROUPS = 8;
export const BATCH_VERSION = '5';
export const BATCH_BOUND = 2;

/** A server with sessions that a simulated node made up. `results` are their results as the server's API returns them. */
export type SimulatedServer = {
  readonly url: string;
  readonly results: readonly SessionResult[];
  close(): Promise<void>;
};

/**
 * Starts a server and lets a simulated node deliver `sessions` results. They have several harnesses, sources and policy versions, and later
 * versions have higher rewards.
 */
export async function startSimulated(sessions: number): Promise<SimulatedServer> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-dashboard-'));
  const server = await startServer(dir, { port: 0 }, silentLogger);
  const client = new FloeClient({ url: server.url });
  const node = new NodeApi({ url: server.url, nodeId: 'simulated' });
  const close = async (): Promise<void> => {
    await Promise.all([client.close(), node.close()]);
    await server.close();
    await rm(dir, { recursive: true, force: true });
  };
  try {
    const size = { max_init_workers: SLOTS, ready_size: SLOTS, max_run_workers: SLOTS, max_postrun_workers: SLOTS };
    await node.register({ ...size, host: null, dispatch_policy: 'pipeline', gateway_url: null, memory_mb: null });
    const random = seededRandom(7);
    const runAll = async (count: number): Promise<void> => {
      for (let left = count; left > 0; ) {
        const leases = await node.lease({ slots: Math.min(left, SLOTS), wait_seconds: 1 });
        const parts = { trajectory: null, completions: null, artifacts: null };
        await Promise.all(leases.map((lease) => node.deliverResult({ summary: summaryOf(lease, random), ...parts })));
        left -= leases.length;
      }
    };
    const { task_id: _, ...task } = taskOf(0);
    const inStream = BATCH_GROUPS * SAMPLES;
    await client.createBatchStream({
      batch_id: BATCH_STREAM,
      source: { kind: 'rows', rows: Array.from({ length: BATCH_GROUPS }, (_, i) => ({ index: i })) },
      task: { ...task, metadata: { ...task.metadata, row: '{{row.index}}' } },
      accept: { zero_variance: 'keep', min_usable: 0 },
      batch_size: BATCH_GROUPS,
      max_staleness: BATCH_BOUND,
      order: { epochs: 1 },
    });
    await runAll(inStream);
    const batch = await client.nextBatch(BATCH_STREAM, { policyVersion: BATCH_VERSION });
    if (batch.batch !== 1) throw new Error('the stream has no batch');
    for (let index = 0; index * SAMPLES < sessions - inStream; index++) await client.submit(taskOf(index));
    await runAll(Math.ceil((sessions - inStream) / SAMPLES) * SAMPLES);
    const results: SessionResult[] = [];
    for await (const result of client.results()) {
      if (results.push(result) >= sessions) break;
    }
    return { url: server.url, results, close };
  } catch (error) {
    await close();
    throw error;
  }
}

function taskOf(index: number): TaskRequestInput {
  const harness = HARNESSES[index % HARNESSES.length] ?? 'pi';
  const source = SOURCES[Math.floor(index / HARNESSES.length) % SOURCES.length];
  return {
    instruction: 'simulated',
    num_samples: SAMPLES,
    agent: harness === 'shell' ? { harness, custom_shell: 'true' } : { harness },
    evaluator: { strategy: 'session_completed' },
    max_attempts: 1,
    metadata: { data_source: source, harness },
  };
}

/** Makes up how a session ended. Later policy versions have higher rewards. */
function summaryOf(lease: Lease, random: RandomSource): SessionSummary {
  const version = String(1 + Math.floor(random() * 4));
  const fails = random() < 0.1;
  const outcome: Outcome = fails ? 'agent_timeout' : 'completed';
  const turns = 1 + Math.floor(random() * 12);
  const running = 200 + random() * 60_000;
  return sessionSummary(lease, outcome, {
    reward: fails ? null : random() < 0.2 + Number(version) * 0.15 ? 1 : Math.floor(random() * 4) / 4,
    trace_count: fails ? 0 : 1,
    trainable_tokens: fails ? 0 : turns * 90,
    completion_count: turns,
    audit: auditOf(turns, fails, random),
    calls: callsOf(turns, lease, random),
    cost: {
      prompt_tokens: turns * 2_000,
      sampled_tokens: turns * 100,
      engine_ms: 0,
      sandbox_ms: running,
      node_cpu_ms: turns * 3,
      stored_bytes: turns * 1_500,
    },
    reward_components: { tests: Math.floor(random() * 5) / 4, style: random() < 0.1 ? null : 0.5 },
    policy_versions: { first: version, last: version },
    timing: {
      queued_ms: lease.queued_ms,
      init_ms: 400,
      ready_ms: 5,
      running_ms: running,
      postrun_queue_ms: 1,
      build_ms: 5,
      eval_ms: 90,
      postrun_ms: 100,
      total_ms: 506 + running,
    },
    agent: {
      ...{ exit_code: 0, turns, stdout_tail: '', stderr_tail: '', isolation: 'none' },
      episode: {
        ...{ status: 'finished', score: null, seat_scores: {}, reason: 'simulated' },
        metrics: random() < 0.3 ? { 'hints.no_call': 2 } : {},
      },
    },
    node_id: 'simulated',
    metadata: lease.task.metadata,
  });
}

/** Makes up an audit of replies of 100 tokens each. Some prompts contain an earlier turn with other ids than were sampled. */
function auditOf(turns: number, fails: boolean, random: RandomSource): Audit {
  const drifted = random() < 0.2 ? 1 : 0;
  const trained = fails ? 0 : turns * 90;
  const links = { root: 1, exact: Math.max(0, turns - 1 - drifted), rerendered: turns > 1 ? drifted : 0, fork: 0 };
  return {
    tokens: {
      sampled: turns * 100,
      trained,
      excluded: { [fails ? 'outcome' : 'undelivered']: turns * 100 - trained },
      constrained: 0,
    },
    completions: { recorded: turns, trained: fails ? 0 : turns, excluded: {} },
    links,
    drift: links.rerendered > 0 ? { rewritten: 1 } : {},
    exact_context_share: fails ? null : 1,
    context_images: 0,
    rendered_for_images: 0,
    context_special_tokens: 0,
  };
}

/** Makes up the calls of a session: one call of a tool for each turn, whose times double from call to call. */
function callsOf(turns: number, lease: Lease, random: RandomSource): CallSums {
  const dialect = lease.task.agent.harness === 'codex' ? 'openai_responses' : 'openai_chat';
  const firstMs = 10 + random() * 90;
  const times = Array.from({ length: turns }, (_, i) => firstMs * 2 ** (i % 6));
  const counts: Record<string, number> = {};
  for (const ms of times) counts[timeIntervalOf(ms)] = (counts[timeIntervalOf(ms)] ?? 0) + 1;
  return {
    dialects: [dialect],
    engines: [random() < 0.5 ? 'vllm' : 'sglang'],
    engine_ms: turns * 700,
    spliced: turns - 1,
    rendered: { first: 1 },
    tools: [
      {
        name: 'bash',
        calls: turns,
        failures: random() < 0.2 ? 1 : 0,
        total_ms: times.reduce((sum, ms) => sum + ms, 0),
        times: counts,
      },
    ],
  };
}
