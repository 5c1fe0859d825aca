import { gzipSync } from 'node:zlib';
import { deliveryLength } from '@floe-rl/client';
import { FloeError, MIB } from '@floe-rl/core';
import { RESULT_LIMIT_BYTES } from '@floe-rl/core/protocol';
import { type EngineInfo, MAX_ARTIFACTS_MB } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { buildGraph } from '../../../../capture/src/tokens/graph.ts';
import { CLOSE } from '../../../../capture/test/tokens/session.ts';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { type Decoder, graphOptionsOf, withinResultLimit } from '../../../src/gateway/session/postrun-stage.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { type BenchParts, bench, ENDED_WELL, settle, untilAborted } from '../session-bench.ts';

const ARCHIVE = gzipSync('a tar archive');

const PACKED: BenchParts = {
  pack: async () => ({
    ...ENDED_WELL,
    stdout: `gzip 0\ntar 0\nhead 0\nbytes ${ARCHIVE.length}\narchive /tmp/tmp.1/packed\n`,
  }),
  readFile: async () => ARCHIVE,
};

describe('the artifacts of a session', () => {
  it('are delivered with the result, with their size in the summary', async () => {
    const { attempt, deps } = bench(PACKED);
    const result = await runSession(attempt, deps);
    expect(result?.artifacts).toEqual(ARCHIVE);
    expect(result?.summary).toMatchObject({
      outcome: 'completed',
      artifacts: { bytes: ARCHIVE.length, omitted: null },
    });
  });

  it('are packed after the evaluation', async () => {
    const order: string[] = [];
    const { attempt, deps } = bench({
      pack: async (signal) => {
        order.push('packed');
        return PACKED.pack?.(signal) ?? ENDED_WELL;
      },
      evaluate: async () => {
        order.push('graded');
        return { reward: 1, details: {} };
      },
    });
    await runSession(attempt, deps);
    expect(order).toEqual(['graded', 'packed']);
  });

  it('are delivered for an agent that timed out and for a failed evaluation', async () => {
    const slow = bench({
      ...PACKED,
      task: { budgets: { agent: 10 }, evaluator: { strategy: 'fake' } },
      exec: untilAborted,
    });
    const ended = runSession(slow.attempt, slow.deps);
    await settle();
    slow.clock.advance(10_000);
    expect(await ended).toMatchObject({ summary: { outcome: 'agent_timeout' }, artifacts: ARCHIVE });

    const { attempt, deps } = bench({
      ...PACKED,
      evaluate: async () => {
        throw new FloeError('evaluator_failed', 'no report');
      },
    });
    expect(await runSession(attempt, deps)).toMatchObject({
      summary: { outcome: 'verifier_error' },
      artifacts: ARCHIVE,
    });
  });

  it('are not collected when the task disables them', async () => {
    const { attempt, deps } = bench({ ...PACKED, task: { artifacts: { collect: false } } });
    const result = await runSession(attempt, deps);
    expect(result).toMatchObject({ artifacts: null, summary: { artifacts: null, outcome: 'completed' } });
  });

  it('are omitted when packing takes too long, without changing the outcome', async () => {
    const { attempt, deps, clock } = bench({ pack: untilAborted, task: { evaluator: { strategy: 'fake' } } });
    const ended = runSession(attempt, deps);
    await settle();
    clock.advance(20_000);
    expect(await ended).toMatchObject({
      artifacts: null,
      summary: { outcome: 'completed', artifacts: { bytes: 0, omitted: 'packing took longer than 20 s' } },
    });
  });

  it('are omitted without failing the session when packing fails', async () => {
    const { attempt, deps } = bench({
      pack: async () => {
        throw new FloeError('runtime_failed', 'the sandbox is gone');
      },
    });
    expect((await runSession(attempt, deps))?.summary).toMatchObject({
      outcome: 'completed',
      error: null,
      artifacts: { bytes: 0, omitted: 'the sandbox is gone' },
    });
  });

  it('are dropped when the session is cancelled while they are packed', async () => {
    const { attempt, deps, alive } = bench({ pack: untilAborted });
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('cancelled');
    expect(await ended).toBeNull();
    expect(alive.size).toBe(0);
  });

  it('are omitted with the reason when the node shuts down while they are packed', async () => {
    const { attempt, deps } = bench({ pack: untilAborted });
    const ended = runSession(attempt, deps);
    await settle();
    attempt.stop('shutdown');
    expect((await ended)?.summary).toMatchObject({
      outcome: 'completed',
      artifacts: { bytes: 0, omitted: expect.stringContaining('shutdown') },
    });
  });
});

describe('a result that is too large with its artifacts', () => {
  it('is delivered without its artifacts and states the reason', async () => {
    const { attempt, deps } = bench(PACKED);
    const result = await runSession(attempt, deps);
    if (result === null) throw new Error('there is a result');
    const bytes = deliveryLength(result);
    expect(withinResultLimit(result, bytes)).toBe(result);
    const smaller = withinResultLimit(result, bytes - 1);
    expect(smaller).toMatchObject({
      artifacts: null,
      trajectory: result.trajectory,
      summary: { outcome: 'completed' },
    });
    expect(smaller.summary.artifacts).toEqual({ bytes: 0, omitted: expect.stringContaining(String(bytes - 1)) });
  });

  it('is delivered at once without token data, as agent_error, when the token data is too large', async () => {
    const t = new Transcript();
    t.call(t.start());
    const { attempt, deps } = bench({
      ...PACKED,
      task: { evaluator: { strategy: 'fake' } },
      evaluate: async () => ({ reward: 1, details: {} }),
      session: { completions: () => t.completions },
    });
    const result = await runSession(attempt, deps);
    if (result === null) throw new Error('the session has a result');
    const limit = 1_000;
    const reduced = withinResultLimit(result, limit);
    expect(reduced).toMatchObject({ trajectory: null, completions: null, artifacts: null });
    expect(reduced.summary).toMatchObject({
      ...{
        session_id: 'ses_1',
        status: 'ERROR',
        outcome: 'agent_error',
        reward: 1,
        trace_count: 0,
        trainable_tokens: 0,
      },
      ...{ policy: { use: 'mask', in_baseline: true }, completion_count: 1, audit: null },
      error: { code: 'body_too_large', details: { limit_bytes: limit, earlier_error: null } },
    });
  });

  it('keeps the outcome of a failed infrastructure when the token data is too large', async () => {
    const { attempt, deps } = bench({
      start: async () => {
        throw new FloeError('runtime_failed', 'no sandbox');
      },
    });
    const result = await runSession(attempt, deps);
    if (result === null) throw new Error('the session has a result');
    expect(withinResultLimit(result, 100).summary).toMatchObject({ outcome: 'infra_error', reward: null });
  });

  it('needs 64 MiB of token data even with the largest artifacts that a task can request', () => {
    expect(RESULT_LIMIT_BYTES - MAX_ARTIFACTS_MB * MIB).toBeGreaterThanOrEqual(64 * MIB);
  });
});

/**
 * Builds a session of two turns. The prompt of the second turn contains the reply of the first turn in other token ids than were sampled.
 */
function drifted(): Transcript {
  const t = new Transcript();
  const h0 = t.start();
  const c0 = t.call(h0, { response: [100, CLOSE], stop: null });
  t.call(t.after(h0, c0, [101, 102]), { stop: null });
  return t;
}

function decoder(detokenize: Decoder['detokenize'], pool = 'default'): Decoder {
  const template = {
    close_ids: [CLOSE],
    call_end: { ids: [] as number[], each: null },
    tail_render: true,
    thinking: { tool_results: 'kept', user_message: 'kept' },
    fingerprint: null,
  } as const;
  return {
    info: () => [{ pool } as EngineInfo],
    modeOf: (requested) => {
      if (requested !== pool) throw new Error(`requested pool ${requested}`);
      return { mode: 'tokens', template: { ...template, close_ids: [...template.close_ids] } };
    },
    detokenize,
  };
}

describe('the policy versions of a session', () => {
  it('are those of its first and its last sampled token', async () => {
    const completions = drifted().completions.map((completion, i) => ({
      ...completion,
      versionSpans: completion.versionSpans.map((span) => ({ ...span, version: `v${i + 7}` })),
    }));
    const { attempt, deps } = bench({ session: { completions: () => completions } });
    expect((await runSession(attempt, deps))?.summary.policy_versions).toEqual({ first: 'v7', last: 'v8' });
  });

  it('are null for a session without a model call', async () => {
    const { attempt, deps } = bench();
    expect((await runSession(attempt, deps))?.summary.policy_versions).toBeNull();
  });
});

describe('the cost of a session', () => {
  it('has its tokens, the CPU time of its process, and the bytes of all parts that are delivered', async () => {
    const { completions } = drifted();
    const { attempt, deps } = bench({ ...PACKED, session: { completions: () => completions } });
    const result = await runSession(attempt, deps);
    const sum = (of: (usage: (typeof completions)[number]['usage']) => number): number =>
      completions.reduce((all, { usage }) => all + of(usage), 0);
    const parts = [result?.trajectory, result?.completions, result?.artifacts];
    expect(parts.every((part) => part != null)).toBe(true);
    expect(result?.summary.cost).toEqual({
      prompt_tokens: sum((usage) => usage.prompt_tokens),
      sampled_tokens: sum((usage) => usage.completion_tokens),
      engine_ms: result?.summary.calls?.engine_ms,
      sandbox_ms: result?.summary.timing.total_ms,
      node_cpu_ms: 1,
      stored_bytes: parts.reduce((bytes, part) => bytes + (part?.length ?? 0), 0),
    });
  });
});

describe('drift at the end of a session', () => {
  it("is resolved by the engines of the task's pool", async () => {
    const { attempt } = bench({ task: { engine: { pool: 'policy' } } });
    const { completions } = drifted();
    const pools: string[] = [];
    const engines = decoder(async (_, { pool, sessionId }) => {
      pools.push(`${pool} ${sessionId}`);
      return 'the same';
    }, 'policy');
    const options = await graphOptionsOf(attempt, completions, engines);
    expect(options.closeIds).toEqual([CLOSE]);
    expect(buildGraph(completions, options).nodes[1]?.drift).toBe('retokenized');
    expect(pools).toEqual(['policy ses_1', 'policy ses_1']);
  });

  it('is resolved by the engines of the pool that gave the reply', async () => {
    const { attempt } = bench({ task: { engine: { pool: 'policy', extra_pools: ['large'] } } });
    const { completions } = drifted();
    const engineId = completions[0]?.engineId ?? '';
    const pools = new Set<string>();
    const { modeOf } = decoder(() => Promise.reject(new Error('unused')));
    const engines: Decoder = {
      info: () => [
        { pool: 'policy', engine_id: 'other' } as EngineInfo,
        { pool: 'large', engine_id: engineId } as EngineInfo,
      ],
      modeOf: () => modeOf('default', 'auto'),
      async detokenize(_, { pool }) {
        pools.add(pool);
        return 'the same';
      },
    };
    const options = await graphOptionsOf(attempt, completions, engines);
    expect(buildGraph(completions, options).nodes[1]?.drift).toBe('retokenized');
    expect([...pools]).toEqual(['large']);
  });

  it('stays unresolved when the pool has no engines', async () => {
    const { attempt } = bench();
    const { completions } = drifted();
    const engines = decoder(() => Promise.reject(new Error('must not be called')), 'another');
    expect(await graphOptionsOf(attempt, completions, engines)).toMatchObject({ closeIds: [] });
  });

  it('stays unresolved when an engine does not respond in time, and the session completes', async () => {
    const { completions } = drifted();
    const task = { evaluator: null };
    const { attempt, deps, clock } = bench({ task, session: { completions: () => completions } });
    let onAsked = (): void => {};
    const asked = new Promise<void>((resolve) => (onAsked = resolve));
    const engines = decoder((_, __, signal) => {
      onAsked();
      return untilAborted(signal);
    });
    const ended = runSession(attempt, { ...deps, engines });
    await asked;
    clock.advance(10_000);
    const result = await ended;
    expect(result?.summary).toMatchObject({ outcome: 'completed', trace_count: 2 });
    expect(result?.summary.audit).toMatchObject({ drift: { reserialized: 1 }, exact_context_share: 1 });
    expect(attempt.tallies).toMatchObject([{ engineId: 'engine', sampled: 7, trained: 7, exact: 7 }]);
  });

  it('is merged into one trace when it is resolved', async () => {
    const { completions } = drifted();
    const { attempt, deps } = bench({ task: { evaluator: null }, session: { completions: () => completions } });
    const result = await runSession(attempt, { ...deps, engines: decoder(async () => 'the same') });
    expect(result?.summary).toMatchObject({ trace_count: 1, audit: { drift: { retokenized: 1 } } });
  });
});
