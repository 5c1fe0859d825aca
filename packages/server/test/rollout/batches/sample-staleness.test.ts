import type { BatchStaleness } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { rows, StreamBench } from './stream-bench.ts';

let bench: StreamBench;
beforeEach(async () => {
  bench = await StreamBench.create();
});
afterEach(() => bench.dispose());

const staleness = async (query = ''): Promise<BatchStaleness> =>
  (await bench.caller.call<BatchStaleness>('GET', `/rollout/batches/b/staleness${query}`)).body;

/** Ends the two samples of the next group. `versions` are the policy versions of their first tokens. */
async function endGroup(...versions: readonly (string | null)[]): Promise<void> {
  for (const [reward, first] of versions.entries()) {
    const [lease] = await bench.lease();
    if (lease === undefined) throw new Error('nothing was leased');
    await bench.end(lease, reward, {}, { policy_versions: { first, last: '99' } });
  }
}

describe('the staleness of samples', () => {
  it('is counted from the version of their first token to the step at the hand-out', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(9) }, batch_size: 1, max_staleness: 3 });
    expect(await staleness()).toEqual({ batch_id: 'b', max_staleness: 3, batches: [] });
    await bench.next({ policy_version: '7' });
    await endGroup('3', '7');
    await bench.next({ policy_version: '7' });
    await endGroup('v8', 'main');
    await bench.next({ policy_version: '8' });
    const counted = {
      batch_id: 'b',
      max_staleness: 3,
      batches: [
        { batch: 2, samples: { '0': 1, unknown: 1 } },
        { batch: 1, samples: { '0': 1, '4': 1 } },
      ],
    };
    expect(await staleness()).toEqual(counted);
    expect((await staleness('?limit=1')).batches).toEqual([counted.batches[0]]);
  });

  it('is forgotten of batches that are taken back, and counted once more when they are handed out', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(9) }, batch_size: 1, max_staleness: 9 });
    await bench.next({ policy_version: '7' });
    await endGroup('7', '6');
    await bench.next({ policy_version: '7' });
    await bench.caller.call('POST', '/rollout/batches/b/rewind', { after: 0, policy_version: '7' });
    expect((await staleness()).batches).toEqual([]);
    await bench.next({ policy_version: '9' });
    expect((await staleness()).batches).toEqual([{ batch: 1, samples: { '2': 1, '3': 1 } }]);
  });

  it('is not found for an unknown stream', async () => {
    expect((await bench.caller.call('GET', '/rollout/batches/none/staleness')).status).toBe(404);
  });
});
