import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { COMPLETIONS, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

let bench: Workbench;
beforeEach(async () => {
  bench = await Workbench.create();
});
afterEach(() => bench.dispose());

describe('a task', () => {
  it('is submitted, leased, delivered and read back with its bytes unchanged', async () => {
    const running = await bench.server();
    const client = await running.client();
    const node = await running.node();
    const submitted = await client.submit(task({ num_samples: 2 }));
    expect(submitted.session_ids).toHaveLength(2);
    const leases = await node.lease({ slots: 5, wait_seconds: 0 });
    expect(leases.map((lease) => lease.session_id)).toEqual(submitted.session_ids);
    expect(leases[0]?.task.instruction).toBe('add two numbers');
    for (const lease of leases) {
      const reply = await node.deliverResult({
        summary: summaryOf(lease),
        trajectory: TRAJECTORY,
        completions: COMPLETIONS,
        artifacts: null,
      });
      expect(reply).toMatchObject({ duplicate: false, requeued: false });
    }
    const results = [];
    for await (const result of client.results({ follow: false })) results.push(result);
    expect(results.map((result) => result.cursor)).toEqual([1, 2]);
    expect(results[0]?.trajectory).toEqual(JSON.parse(TRAJECTORY.toString()));
    expect((await client.task(submitted.task_id)).status).toBe('completed');
    expect(await client.completions(leases[0]?.session_id ?? '')).toEqual(COMPLETIONS);
  });
});
