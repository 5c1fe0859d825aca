import { MAX_TASK_BYTES } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { checkTemplate, rowTask, sampleOf, sampleTask, taskIdOf } from '../../src/generation/row-task.ts';

const ROW = { where: 'rows.jsonl:3', fields: { text: 'Add 1.', agent: { harness: 'pi' }, turns: 7 } };
const TEMPLATE = { instruction: '{{row.text}}', agent: { harness: 'pi', max_turns: '{{row.turns}}' } };
const OWNER = { run: 'gen_1', trainer: 'gen_1-2' };
const ID = { row: 2, sample: 4, retry: 0 };

describe('sampleTask', () => {
  it('fills the row into the template, and names run, row and sample', () => {
    expect(sampleTask(TEMPLATE, ROW, OWNER, ID)).toMatchObject({
      task_id: 'gen_1-2-4',
      idempotency_key: 'gen_1-2-4',
      num_samples: 1,
      trainer: 'gen_1-2',
      instruction: 'Add 1.',
      agent: { harness: 'pi', max_turns: 7 },
      metadata: { floe_generate: { run: 'gen_1', row: 2, sample: 4, retry: 0 } },
    });
  });

  it('keeps trainer and metadata of the template', () => {
    const template = { ...TEMPLATE, trainer: 'me', metadata: { a: '{{row.turns}}' } };
    const task = sampleTask(template, ROW, OWNER, ID);
    expect(task).toMatchObject({ trainer: 'me', metadata: { a: 7, floe_generate: {} } });
    expect(sampleOf('gen_1', task)).toEqual(ID);
    expect(sampleOf('gen_2', task)).toBe(null);
    expect(sampleOf('gen_1', { metadata: {} })).toBe(null);
  });

  it('gives each sample and its repetition another seed', () => {
    const seedOf = (sample: number, retry: number, seed?: number) =>
      sampleTask({ ...TEMPLATE, ...(seed === undefined ? {} : { sampling: { seed } }) }, ROW, OWNER, {
        row: 0,
        sample,
        retry,
      }).sampling.seed;
    expect([seedOf(0, 0, 10), seedOf(3, 0, 10), seedOf(0, 1, 10), seedOf(3, 0)]).toEqual([10, 13, 50_010, null]);
  });

  it('takes whole objects from rows that are tasks', () => {
    expect(rowTask({ instruction: '{{row.text}}', agent: '{{row.agent}}' }, ROW)).toMatchObject({
      agent: { harness: 'pi' },
    });
  });

  it.each([
    [{ ...TEMPLATE, instruction: '{{row.absent}}' }, 'rows.jsonl:3: row.absent: is missing'],
    [{ ...TEMPLATE, timeout_seconds: '{{row.text}}' }, 'rows.jsonl:3: the task: timeout_seconds'],
  ])('names the row that does not fit', (template, message) => {
    expect(() => rowTask(template, ROW)).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining(message) }),
    );
  });
});

describe('rowTask', () => {
  it('refuses a row whose task would be larger than a submitted one, and names the row', () => {
    const template = { ...TEMPLATE, instruction: '{{row.text}}'.repeat(10_000) };
    const row = { ...ROW, fields: { ...ROW.fields, text: 'x'.repeat(1_000) } };
    expect(() => rowTask(template, row)).toThrow(
      expect.objectContaining({
        code: 'body_too_large',
        message: expect.stringMatching(/^rows.jsonl:3: instruction: /),
        details: expect.objectContaining({ row: 'rows.jsonl:3', path: 'instruction', limit_bytes: MAX_TASK_BYTES }),
      }),
    );
  });
});

describe('taskIdOf', () => {
  it('differs between rows, samples and repetitions', () => {
    const ids = [0, 1, 11].flatMap((row) =>
      [0, 1, 11].flatMap((sample) => [0, 1].map((retry) => taskIdOf('gen_1', { row, sample, retry }))),
    );
    expect(new Set(ids).size).toBe(ids.length);
  });
});

describe('checkTemplate', () => {
  it.each(['task_id', 'idempotency_key', 'num_samples', 'early_stop_min_usable_sessions', 'refill'])(
    'refuses %s, and names what to use instead',
    (field) => {
      expect(() => checkTemplate({ ...TEMPLATE, [field]: 2 }, 'task.yaml')).toThrow(`task.yaml: ${field} must not`);
    },
  );

  it('accepts templates that depend on the row', () => {
    for (const text of ['{{row}}', '{{ row.a }}', 'a {{row.a}} b']) {
      expect(checkTemplate({ instruction: text }, 'task.yaml')).toBe(undefined);
    }
    expect(() => checkTemplate({ instruction: '{{rows.a}}' }, 'task.yaml')).toThrow('has no placeholder');
  });
});
