import { describe, expect, it } from 'vitest';
import { type Decoder, graphOptionsOf } from '../../../src/gateway/session/drift-proof.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import type { EngineInfo } from '../../../src/schema/index.ts';
import { buildGraph } from '../../../src/tokens/graph.ts';
import { CLOSE } from '../../tokens/session.ts';
import { Transcript } from '../../tokens/transcript.ts';
import { bench, settle, untilAborted } from '../bench.ts';

/** A session of two turns, the first of which was rendered in other tokens. */
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
    tail_render: true,
    thinking: { tool_results: 'kept', user_message: 'kept' },
    fingerprint: null,
  } as const;
  return {
    info: () => [{ pool } as EngineInfo],
    modeOf: (asked) => {
      if (asked !== pool) throw new Error(`asked for pool ${asked}`);
      return { mode: 'tokens', template: { ...template, close_ids: [...template.close_ids] } };
    },
    detokenize,
  };
}

describe('drift at the end of a session', () => {
  it('is proven by the engines of its own pool', async () => {
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

  it('stays unproven when the engines are gone', async () => {
    const { attempt } = bench();
    const { completions } = drifted();
    const engines = decoder(() => Promise.reject(new Error('asked')), 'another');
    expect(await graphOptionsOf(attempt, completions, engines)).toMatchObject({ closeIds: [] });
  });

  it('stays unproven when an engine does not answer in time; the session ends all the same', async () => {
    const { completions } = drifted();
    const task = { evaluator: null };
    const { attempt, deps, clock } = bench({ task, session: { completions: () => completions } });
    const engines = decoder((_, __, signal) => untilAborted(signal));
    const ended = runSession(attempt, { ...deps, engines });
    await settle();
    clock.advance(10_000);
    const result = await ended;
    expect(result?.summary).toMatchObject({ outcome: 'completed', trace_count: 2 });
    expect(result?.summary.audit).toMatchObject({ drift: { reserialized: 1 }, exact_context_share: 1 });
    expect(attempt.tallies).toMatchObject([{ engineId: 'engine', sampled: 7, trained: 7, exact: 7 }]);
  });

  it('merges what is proven', async () => {
    const { completions } = drifted();
    const { attempt, deps } = bench({ task: { evaluator: null }, session: { completions: () => completions } });
    const result = await runSession(attempt, { ...deps, engines: decoder(async () => 'the same') });
    expect(result?.summary).toMatchObject({ trace_count: 1, audit: { drift: { retokenized: 1 } } });
  });
});
