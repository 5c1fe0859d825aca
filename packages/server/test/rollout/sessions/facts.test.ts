import { VirtualClock } from '@floe-rl/core';
import { type SessionSummary, taskRequestSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import { createControlPlane } from '../../../src/rollout/control-plane.ts';
import { factsOf, foldFacts } from '../../../src/rollout/sessions/facts.ts';
import { type FactFilter, SqliteStore } from '../../../src/store/index.ts';
import { factRow } from '../../store/store-rows.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { summaryOf, task, Workbench } from '../workbench.ts';

const EVERY: FactFilter = { values: {}, ranges: {}, usable: null, sinceMs: null, untilMs: null };
const LEASE = { session_id: 'ses_1', task_id: 'task_1', sample_index: 3, attempt: 2, epoch: 4 };
const NO_CALLS = { spliced: 0, rendered: {}, tools: [] };
const ROW = { trainer: 'alice', turns: 5, sampled_tokens: 70 };

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

function facts(fields: Parameters<typeof task>[0] = {}, summary: Partial<SessionSummary> = {}) {
  return factsOf(ROW, summaryOf(LEASE, 'completed', summary), taskRequestSchema.parse(task(fields)), 1234.5);
}

describe('the facts of a session', () => {
  it('have the fields of its result and of its task', () => {
    const versions = { policy_versions: { first: '7', last: '8' }, node_id: 'node-1', reward: 0.5 };
    const metadata = { data_source: 'gsm8k', split: 'train' };
    expect(facts({ metadata }, versions)).toEqual({
      session_id: 'ses_1',
      task_id: 'task_1',
      sample_index: 3,
      trainer: 'alice',
      harness: 'shell',
      agent: null,
      source: 'gsm8k',
      split: 'train',
      outcome: 'completed',
      unusable: null,
      reward: 0.5,
      version: '8',
      first_version: '7',
      dialect: null,
      engine: null,
      node_id: 'node-1',
      attempt: 2,
      turns: 5,
      completions: 1,
      sampled_tokens: 70,
      trained_tokens: 3,
      traces: 1,
      queued_ms: 1,
      init_ms: 1,
      ready_ms: 1,
      running_ms: 1,
      postrun_ms: 1,
      total_ms: 7,
      engine_ms: null,
      sandbox_ms: 7,
      ended_ms: 1234,
      measures: [],
    });
  });

  it('name the agent of the harness `floe`, and of no other harness', () => {
    const settings = { agent: 'coder' };
    expect(facts({ agent: { harness: 'floe', settings } }).agent).toBe('coder');
    expect(facts({ agent: { harness: 'shell', custom_shell: 'true', settings } }).agent).toBeNull();
  });

  it('have only texts as labels, bounded and without what PostgreSQL refuses', () => {
    expect(facts({ metadata: { data_source: 7, split: '' } })).toMatchObject({ source: null, split: null });
    const { source } = facts({ metadata: { data_source: `a\0${'b'.repeat(999)}` } });
    expect(source).toHaveLength(256);
    expect(source?.slice(0, 3)).toBe('a\u{fffd}b');
  });

  it('have the reward 0 for a reward whose square PostgreSQL cannot compute', () => {
    expect(facts({}, { reward: -1e-170 }).reward).toBe(0);
    expect(facts({}, { reward: 1e-9 }).reward).toBe(1e-9);
  });

  it('have the dialect and the kind of the engines, and `several` for more than one', () => {
    const calls = { dialects: ['gemini'], engines: ['vllm', 'sglang'], engine_ms: 12, ...NO_CALLS } as const;
    const described = { calls: { ...calls, dialects: [...calls.dialects], engines: [...calls.engines] } };
    expect(facts({}, described)).toMatchObject({ dialect: 'gemini', engine: 'several', engine_ms: 12 });
    expect(facts({ runtime: { backend: 'none' } }).sandbox_ms).toBeNull();
  });

  it('have no duration for a session that reached no node', () => {
    const { timing } = summaryOf(LEASE);
    const none = { ...timing, queued_ms: null, total_ms: 0 };
    expect(facts({}, { timing: none })).toMatchObject({ queued_ms: null, total_ms: null });
  });
});

describe('a session that ends', () => {
  it('has facts in the store, whether its node delivered it or the server ended it', async () => {
    const running = await bench.server();
    const client = await running.client();
    const node = await running.node();
    const { session_ids: ids, task_id: taskId } = await client.submit(task({ num_samples: 2, trainer: 'alice' }));
    const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
    const summary = summaryOf(lease ?? LEASE, 'completed', { reward: 0.25 });
    await node.deliverResult({ summary, trajectory: null, completions: null, artifacts: null });
    await client.cancelSession(ids[1] ?? '');
    const store = SqliteStore.open(`${bench.directory}/floe.db`);
    const rows = await store.read((tables) => tables.facts.list(EVERY, { by: 'fact_no', descending: false }, null, 9));
    await store.close();
    expect(rows).toMatchObject([
      { session_id: ids[0], task_id: taskId, trainer: 'alice', outcome: 'completed', reward: 0.25, total_ms: 7 },
      { session_id: ids[1], task_id: taskId, outcome: 'cancelled', reward: null, total_ms: null, node_id: null },
    ]);
  });
});

describe('foldFacts', () => {
  it('adds facts to the totals once there are many', async () => {
    const store = SqliteStore.open(':memory:');
    const clock = new VirtualClock(0);
    const config = rolloutConfigSchema.parse({});
    const plane = await createControlPlane(config, { store, blobs: new MemoryBlobs(), clock, validateTask: () => {} });
    const add = (from: number, to: number) =>
      store.transaction(async (tables) => {
        for (let i = from; i < to; i++) await tables.facts.add(factRow(`s${i}`));
      });
    const unfolded = () => store.read((tables) => tables.facts.unfolded(1_000));
    await add(0, 99);
    await foldFacts(plane.context);
    expect(await unfolded()).toBe(99);
    await add(99, 250);
    await foldFacts(plane.context);
    expect(await unfolded()).toBe(0);
    expect(await store.read((tables) => tables.facts.count(EVERY, 1))).toBe(250);
    plane.close();
    await store.close();
  });
});
