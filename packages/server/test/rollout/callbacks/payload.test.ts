import { describe, expect, it } from 'vitest';
import { callbackBody } from '../../../src/rollout/callbacks/payload.ts';
import { TrajectoryReader } from '../../../src/rollout/sessions/trajectory-reader.ts';
import type { ResultWithSummary } from '../../../src/store/index.ts';
import { taskRow } from '../../store/store-rows.ts';
import { MemoryBlobs } from '../memory-blobs.ts';

describe('callbackBody', () => {
  it.each([
    ['full', 0],
    ['full', 3],
    ['summary', 3],
  ] as const)('has the announced length and holds one result at a time (%s, %i results)', async (kind, count) => {
    const blobs = new MemoryBlobs();
    const { ref, bytes } = await blobs.put(Buffer.from('{"traces":["é"]}'));
    let held = 0;
    let most = 0;
    async function* results(): AsyncGenerator<ResultWithSummary> {
      for (let cursor = 1; cursor <= count; cursor++) {
        most = Math.max(most, ++held);
        yield {
          ...{ cursor, session_id: `s${cursor}`, task_id: 't', trainer: 'x', collected: 0, summary: `{"é":${cursor}}` },
          ...{ trajectory_ref: ref, trajectory_bytes: bytes, completions_ref: null, completions_bytes: 0 },
          ...{ artifacts_ref: null, artifacts_bytes: 0 },
        };
        held--;
      }
    }
    const task = taskRow('t', { request: JSON.stringify({ callback_results: kind }), status: 'completed' });
    const body = await callbackBody(task, new Map(), results, new TrajectoryReader(blobs, () => {}));
    for (let reading = 0; reading < 2; reading++) {
      const pieces: Buffer[] = [];
      for await (const piece of body.bytes()) pieces.push(piece);
      const whole = Buffer.concat(pieces);
      expect(whole).toHaveLength(body.length);
      const { results: included, result_paths: paths } = JSON.parse(whole.toString());
      const trajectory = kind === 'full' ? { traces: ['é'] } : null;
      expect(included).toEqual(Array.from({ length: count }, (_, i) => ({ é: i + 1, cursor: i + 1, trajectory })));
      expect(paths).toEqual(Array.from({ length: count }, (_, i) => `/sessions/s${i + 1}/trajectory`));
    }
    expect(most).toBe(Math.min(1, count));
  });
});
