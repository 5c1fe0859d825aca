import { MAX_TASK_BYTES, VirtualClock } from '@floe-rl/core';
import type { BatchRowsReply } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rows, StreamBench, streamOf } from './stream-bench.ts';

/** A template that contains its field so often that the task of a row of {@link LARGE} is larger than a submission may be. */
const TASK = { ...streamOf({}).task, instruction: `Answer ${'{{row.question}}'.repeat(2_000)}` };
const LARGE = { question: 'x'.repeat(64 * 1024) };

let bench: StreamBench;
beforeEach(async () => {
  bench = await StreamBench.create();
});
afterEach(() => bench.dispose());

describe('a row whose task would be larger than a submitted one', () => {
  it('is refused with its stream, with the row, the field of the template, the size and the limit', async () => {
    const { status, body } = await bench.refusal({ task: TASK, source: { kind: 'rows', rows: [LARGE] } });
    const bytes = Buffer.byteLength(JSON.stringify(TASK)) + 2_000 * (LARGE.question.length - '{{row.question}}'.length);
    expect([status, body.error]).toMatchObject([
      413,
      {
        code: 'body_too_large',
        message: expect.stringMatching(new RegExp(`row 0: instruction: .* ${bytes} bytes .* ${MAX_TASK_BYTES} bytes`)),
        details: { row_index: 0, path: 'instruction', bytes, limit_bytes: MAX_TASK_BYTES },
      },
    ]);
    expect((await bench.view()).batch_id).toBeUndefined();
  });

  it('is listed with its reason and never sampled when other rows of the stream fit', async () => {
    const source = { kind: 'rows' as const, rows: [LARGE, ...rows(1)], open: true };
    const { problems } = await bench.createStream({ task: TASK, source });
    expect(problems).toEqual([{ row_index: 0, message: expect.stringContaining(`at most ${MAX_TASK_BYTES} bytes`) }]);
    const added = await bench.caller.call<BatchRowsReply>('POST', '/rollout/batches/b/rows', { rows: [LARGE] });
    expect(added.body.invalid).toMatchObject([{ row_index: 2 }]);
    const leases = await bench.lease(8);
    expect(leases.map(({ task }) => task.metadata.batch)).toMatchObject([{ row_index: 1 }, { row_index: 1 }]);
  });

  it('is refused for a template that is too large itself', async () => {
    const task = { ...TASK, instruction: '{{row.question}} '.repeat(MAX_TASK_BYTES / 16) };
    const { status, body } = await bench.refusal({ task });
    expect([status, body.error]).toMatchObject([413, { code: 'body_too_large', details: { path: 'task' } }]);
  });
});

describe('a stream of rows that take long to check', () => {
  it('lets other work of the server run between its rows', async () => {
    const clock = new VirtualClock();
    let checked = 0;
    let checkedMeanwhile = Number.NaN;
    const slow = await StreamBench.create(
      {},
      {
        clock,
        validateTask: () => {
          clock.advance(20);
          checked++;
          if (checked === 1) setImmediate(() => (checkedMeanwhile = checked));
        },
      },
    );
    await slow.createStream({ source: { kind: 'rows', rows: rows(10) } });
    expect(checkedMeanwhile).toBe(1);
    await slow.dispose();
  });
});
