import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ServerMetrics } from '../../src/observe/server-metrics.ts';
import { COUNTERS } from '../../src/rollout/status/counters.ts';
import { type Running, summaryOf, task, Workbench } from '../rollout/workbench.ts';

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

  it('exports every counter of the status', async () => {
    const all = await scraped();
    for (const name of Object.keys(COUNTERS)) expect(all.get(`floe_server_${name}_total`), name).toBeTypeOf('number');
  });
});
