import { batchStreamRequestSchema, taskRequestSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { defineTask, taskRequests, taskStream } from '../src/index.ts';

const math = defineTask<{ question: string; answer: string }>({
  dataSource: 'math',
  instruction: ({ question }) => `Solve ${question}`,
  tools: ['think', { name: 'search', config: { top: 3 } }],
  evaluator: ({ answer }) => ({ strategy: 'answer', config: { expected: answer } }),
  val: { tools: ['think'], hints: false },
});
const lake = defineTask<{ seed: number }>({
  dataSource: 'lake',
  instruction: () => '',
  environment: ({ seed }) => ({ type: 'frozen_lake', seed }),
  options: { history: 'step' },
});
const rows = [
  { data_source: 'math', question: '1 + 1', answer: '2' },
  { data_source: 'lake', seed: 7 },
];

describe('tasks from rows', () => {
  it('have the instruction, tools and evaluator of their data source', () => {
    const [sum, crossing] = taskRequests([math, lake], rows, { num_samples: 4 });
    expect(sum).toMatchObject({
      instruction: 'Solve 1 + 1',
      num_samples: 4,
      agent: {
        harness: 'floe',
        settings: { agent: 'tool_call', tools: ['think', { name: 'search', config: { top: 3 } }] },
      },
      evaluator: { strategy: 'answer', config: { expected: '2' } },
      environment: null,
      runtime: { backend: 'none' },
      metadata: { data_source: 'math', row: rows[0] },
    });
    expect(crossing).toMatchObject({
      agent: { settings: { agent: 'gym', options: { history: 'step' } } },
      evaluator: { strategy: 'environment' },
      environment: { type: 'frozen_lake', seed: 7 },
    });
    for (const task of [sum, crossing]) expect(() => taskRequestSchema.parse(task)).not.toThrow();
  });

  it('have other tools and hints in an evaluation', () => {
    const [sum, crossing] = taskRequests([math, lake], rows, { split: 'val' });
    expect(sum?.agent.settings).toEqual({ agent: 'tool_call', options: {}, tools: ['think'], hints: false });
    expect(crossing?.agent.settings).not.toHaveProperty('hints');
  });

  it('become one batch stream of several data sources', () => {
    const stream = taskStream([math, lake], rows, { batch_id: 'b', split: 'val', task: { timeout_seconds: 9 } });
    expect(batchStreamRequestSchema.parse(stream)).toMatchObject({
      batch_id: 'b',
      purpose: 'evaluate',
      task: { instruction: '{{row.task.instruction}}', timeout_seconds: 9 },
      source: {
        rows: [{ row: rows[0], task: { instruction: 'Solve 1 + 1' } }, { task: { environment: { seed: 7 } } }],
      },
    });
  });

  it('are refused for a data source without a definition', () => {
    expect(() => taskRequests([math], rows)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: 'rows.1.data_source: no task is defined for "lake"; there are: math',
      }),
    );
  });
});
