import type { SessionSummary } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { measuresOf } from '../../../src/rollout/sessions/measures.ts';
import { summaryOf } from '../workbench.ts';

const LEASE = { session_id: 'ses_1', task_id: 'task_1', sample_index: 0, attempt: 1, epoch: 1 };
const NONE = { bin: -1, count: 0, failures: 0, sum: 0, square_sum: 0 };

const measures = (fields: Partial<SessionSummary>) => measuresOf(summaryOf(LEASE, 'completed', fields));

describe('the measures of a session', () => {
  it('count links, drift and excluded tokens of the audit, without those that are 0', () => {
    const audit = {
      tokens: { sampled: 9, trained: 5, excluded: { undelivered: 4 }, constrained: 0 },
      completions: { recorded: 3, trained: 2, excluded: {} },
      links: { root: 1, exact: 1, rerendered: 1, fork: 0 },
      drift: { rewritten: 1 },
      exact_context_share: 1,
      context_images: 0,
      rendered_for_images: 0,
      context_special_tokens: 0,
    };
    expect(measures({ audit, reward_components: {} })).toEqual([
      { ...NONE, kind: 'link', name: 'root', count: 1 },
      { ...NONE, kind: 'link', name: 'exact', count: 1 },
      { ...NONE, kind: 'link', name: 'rerendered', count: 1 },
      { ...NONE, kind: 'drift', name: 'rewritten', count: 1 },
      { ...NONE, kind: 'excluded', name: 'undelivered', count: 4 },
    ]);
  });

  it('have the calls of a tool by their time, and those without an answer', () => {
    const tool = { name: 'bash', calls: 4, failures: 1, total_ms: 900, times: { '20': 2, '33': 1 } };
    const calls = { dialects: [], engines: [], engine_ms: 0, spliced: 2, rendered: { first: 1 }, tools: [tool] };
    expect(measures({ calls })).toEqual([
      { ...NONE, kind: 'rendered', name: 'first', count: 1 },
      { ...NONE, kind: 'rendered', name: 'spliced', count: 2 },
      { ...NONE, kind: 'tool', name: 'bash', count: 1, failures: 1, sum: 900 },
      { ...NONE, kind: 'tool', name: 'bash', bin: 20, count: 2 },
      { ...NONE, kind: 'tool', name: 'bash', bin: 33, count: 1 },
    ]);
  });

  it('have the costs that are no fields of facts, the CPU time in whole microseconds', () => {
    const cost = {
      prompt_tokens: 90,
      sampled_tokens: 9,
      engine_ms: 5,
      sandbox_ms: null,
      node_cpu_ms: 1.2504,
      stored_bytes: 0,
    };
    expect(measures({ cost })).toEqual([
      { ...NONE, kind: 'cost', name: 'prompt_tokens', count: 90 },
      { ...NONE, kind: 'cost', name: 'node_cpu_us', count: 1250 },
    ]);
  });

  it('have the parts of the reward, and those that could not be computed', () => {
    expect(measures({ reward_components: { tests: -0.5, style: null } })).toEqual([
      { ...NONE, kind: 'reward', name: 'tests', count: 1, sum: -0.5, square_sum: 0.25 },
      { ...NONE, kind: 'reward', name: 'style', failures: 1 },
    ]);
  });

  it('are bounded in number and length, and have no text that PostgreSQL refuses', () => {
    const components = Object.fromEntries(Array.from({ length: 99 }, (_, i) => [`\0${'x'.repeat(200)}${i}`, 1]));
    const found = measures({ reward_components: components });
    expect(found).toHaveLength(32);
    expect(found[0]?.name).toBe(`\u{fffd}${'x'.repeat(127)}`);
  });
});
