import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { COUNTERS } from '../../server/src/rollout/status/counters.ts';
import { mixed, rows, StreamBench, streamOf } from '../../server/test/rollout/batches/stream-bench.ts';
import { type Running, summaryOf, task, Workbench } from '../../server/test/rollout/workbench.ts';
import { ServerMetrics } from '../src/server-metrics.ts';

let bench: Workbench;
let running: Running;
let metrics: ServerMetrics;

beforeEach(async () => {
  bench = await Workbench.create();
  metrics = new ServerMetrics();
  running = await bench.server({}, { metricsRegistry: metrics });
  metrics.observe(running.server);
});
afterEach(() => bench.dispose());

async function scraped(): Promise<Map<string, number>> {
  const text = await (await fetch(`${await running.listen()}/metrics`)).text();
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  );
}

describe('ServerMetrics', () => {
  it('follows sessions, trainers, nodes and results from scrape to scrape', async () => {
    const client = await running.client();
    const node = await running.node();
    await client.submit(task({ num_samples: 3, trainer: 'alice' }));
    const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
    if (lease === undefined) throw new Error('no lease');
    const before = await scraped();
    expect(before.get('floe_server_sessions{status="QUEUED"}')).toBe(2);
    expect(before.get('floe_server_trainer_sessions{trainer="alice",state="live"}')).toBe(1);
    expect(before.get('floe_server_nodes{state="healthy"}')).toBe(1);
    await node.deliverResult({ summary: summaryOf(lease), trajectory: null, completions: null, artifacts: null });
    const after = await scraped();
    expect(after.get('floe_server_sessions{status="COMPLETED"}')).toBe(1);
    expect(after.get('floe_server_sessions_ended_total{outcome="completed"}')).toBe(1);
    expect(after.get('floe_server_uncollected_results{trainer="alice"}')).toBe(1);
  });

  it('sums the groups of the running batch streams of a trainer, and drops the series of an ended stream', async () => {
    const streams = await StreamBench.create({}, { metricsRegistry: metrics });
    onTestFinished(() => streams.dispose());
    const { server } = streams.running;
    // The number of sampled tokens comes from the audit, which the sessions of this test do not have.
    const shares = new Map([
      ['b', { useful_share: 0.5, ended_tokens: 12 }],
      ['c', { useful_share: 1, ended_tokens: 4 }],
    ]);
    const status = async () => {
      const found = await server.status();
      return {
        ...found,
        batch_streams: found.batch_streams.map((stream) => ({ ...stream, ...shares.get(stream.batch_id) })),
      };
    };
    metrics.observe({ subscribe: (listener) => server.subscribe(listener), status });
    const read = async () => {
      const text = await metrics.metrics();
      return (name: string) =>
        Number(new RegExp(`^floe_server_batch_${name} (.*)$`, 'm').exec(text)?.[1] ?? Number.NaN);
    };
    const task = { ...streamOf({}).task, trainer: 'alice' };
    await streams.createStream({ task, max_staleness: 9, order: { epochs: 1 } });
    const one = { batch_id: 'c', source: { kind: 'rows', rows: rows(1) }, batch_size: 1 } as const;
    await streams.createStream({ task, max_staleness: 9, order: { epochs: 1 }, ...one });
    for (const id of ['b', 'c']) await streams.next({ policy_version: 'v1' }, id);
    await streams.runAll(({ row, sample }) => (row === 1 ? 0 : mixed({ row, sample, group: 0 })));
    await streams.next({ policy_version: 'v1' });
    await streams.next({ after: 1, policy_version: 'v3' });
    await streams.next({ policy_version: 'v2' }, 'c');
    const value = await read();
    expect(value('groups{trainer="alice",state="handed"}')).toBe(5);
    expect(value('groups{trainer="alice",state="ready"}')).toBe(1);
    expect(value('groups_rejected{trainer="alice",reason="all_wrong"}')).toBe(1);
    expect(value('staleness_versions{trainer="alice"}')).toBe(2);
    expect(value('useful_share{trainer="alice"}')).toBe(10 / 16);
    for (const id of ['b', 'c']) await streams.caller.call('DELETE', `/rollout/batches/${id}`);
    const ended = await read();
    expect(ended('groups{trainer="alice",state="handed"}')).toBeNaN();
    expect(ended('useful_share{trainer="alice"}')).toBeNaN();
  });

  it('exports every counter of the status', async () => {
    const all = await scraped();
    for (const name of Object.keys(COUNTERS)) expect(all.get(`floe_server_${name}_total`), name).toBeTypeOf('number');
  });
});
