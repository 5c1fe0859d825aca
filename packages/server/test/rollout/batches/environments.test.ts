import type { BatchStreamRequestInput, Lease } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { mixed, rowsOf, StreamBench } from './stream-bench.ts';

let bench: StreamBench;
beforeEach(async () => {
  bench = await StreamBench.create();
});
afterEach(() => bench.dispose());

const STREAM: Partial<BatchStreamRequestInput> = {
  source: {
    kind: 'environments',
    environments: [
      { tag: 'A', groups: 1, type: 'sokoban' },
      { tag: 'B', groups: 2, type: 'frozen_lake' },
    ],
    seed: 5,
  },
  task: {
    instruction: '{{row.instruction}}',
    num_samples: 2,
    agent: { harness: 'floe', settings: { agent: 'gym', options: '{{row.options}}' } },
    environment: '{{row.environment}}',
    evaluator: { strategy: 'environment' },
    metadata: { tag: '{{row.tag}}', group: '{{row.group}}', episode: '{{row.episode}}' },
  },
  max_staleness: 4,
};

const playedBy = ({ task: { environment, metadata } }: Lease) => [metadata.tag, metadata.episode, environment?.seed];

/** Runs groups until `count` sessions have ended, and returns what they played. */
async function play(count: number): Promise<unknown[]> {
  const played: unknown[] = [];
  while (played.length < count) {
    const [lease] = await bench.lease();
    if (lease === undefined) throw new Error('the stream starts no group');
    played.push(playedBy(lease));
    await bench.end(lease, played.length % 2);
  }
  return played;
}

describe('a stream of environment groups', () => {
  it('plays one episode of each group after the other without end, and continues exactly after a restart', async () => {
    expect(await bench.createStream(STREAM)).toMatchObject({ row_count: null, rows_complete: false });
    const before = await play(8);
    bench = await bench.restarted();
    const after = await play(8);
    const tags = [...before, ...after].filter((_, i) => i % 2 === 0).map((row) => (row as unknown[]).slice(0, 2));
    expect(tags).toEqual([
      ...[
        ['A', 0],
        ['B', 0],
        ['B', 0],
        ['A', 1],
      ],
      ...[
        ['B', 1],
        ['B', 1],
        ['A', 2],
        ['B', 2],
      ],
    ]);
    const batch = await bench.next();
    expect(rowsOf(batch)).toEqual([0, 1]);
    expect(batch.groups[1]?.row).toMatchObject({
      tag: 'B',
      group: 1,
      episode: 0,
      environment: { type: 'frozen_lake' },
    });

    // The same source plays the same episodes in another service.
    await bench.dispose();
    bench = await StreamBench.create();
    await bench.createStream(STREAM);
    expect(await play(16)).toEqual([...before, ...after]);
  });

  it('ends an evaluation after its episodes', async () => {
    const source = { ...STREAM.source, episodes: 2 } as BatchStreamRequestInput['source'];
    const created = await bench.createStream({ ...STREAM, source, purpose: 'evaluate' });
    expect(created).toMatchObject({ row_count: 6, rows_complete: true });
    expect(await bench.runAll(mixed)).toHaveLength(12);
    expect((await bench.next({ size: 6 })).groups).toHaveLength(6);
    expect(await bench.next()).toMatchObject({ batch: null, done: true });
  });

  it('is refused when one of its environments does not fit, and as an evaluation without end', async () => {
    const environments = [
      { tag: 'A', groups: 3, type: 'sokoban' },
      { tag: 'B', groups: 1, type: 'frozen_lake', options: { history: 'none' } },
    ];
    const source = { kind: 'environments', environments };
    const wrong = await bench.refusal({ ...STREAM, task: { ...STREAM.task, num_samples: '{{row.samples}}' } });
    expect(wrong).toMatchObject({ status: 422, body: { error: { code: 'schema_violation' } } });
    const endless = await bench.refusal({ ...STREAM, source, purpose: 'evaluate' });
    expect(endless).toMatchObject({ status: 422 });
    expect(JSON.stringify(endless.body)).toContain('an evaluation needs a finite source');
  });
});
