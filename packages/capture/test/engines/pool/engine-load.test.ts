import { startSim } from '@floe-rl/sim';
import { describe, expect, it } from 'vitest';
import { loadOf } from '../../../src/engines/pool/engine-load.ts';

const NOTHING = { kvUsage: null, running: null, waiting: null, preemptions: null };

describe('loadOf', () => {
  it.each(['vllm', 'sglang'] as const)('reads every value from the metrics of the simulated %s', async (face) => {
    const sim = await startSim({ face });
    try {
      const text = await (await fetch(`${sim.url}/metrics`)).text();
      expect(loadOf(text)).toEqual({ kvUsage: 0, running: 0, waiting: 0, preemptions: 0 });
    } finally {
      await sim.close();
    }
  });

  it('combines the data-parallel engines of a server', () => {
    const rank = (engine: number, kv: number, waiting: number): string =>
      [
        `vllm:kv_cache_usage_perc{engine="${engine}",model_name="m{ }"} ${kv}`,
        `vllm:num_requests_running{engine="${engine}"} 3`,
        `vllm:num_requests_waiting{engine="${engine}"} ${waiting} 1700000000000`,
        `vllm:num_preemptions_total{engine="${engine}"} 1e2\r`,
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 90',
        '# HELP vllm:num_requests_waiting 77',
      ].join('\n');
    const load = loadOf([rank(0, 0.25, 2), rank(1, 0.75, 5)].join('\n'));
    expect(load).toEqual({ kvUsage: 0.75, running: 6, waiting: 7, preemptions: 200 });
  });

  it.each(['NaN', '-1', '+Inf', '-Inf', '1e18', '1e400', '', 'many', '1 2 3', '{'])(
    'takes %j for no value',
    (value) => {
      const names = ['kv_cache_usage_perc', 'num_requests_running', 'num_requests_waiting', 'num_preemptions_total'];
      expect(loadOf(names.map((name) => `vllm:${name} ${value}`).join('\n'))).toEqual(NOTHING);
      expect(loadOf(`vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} ${value}`)).toEqual(
        NOTHING,
      );
    },
  );

  it.each(['', '\n\n', 'no metrics', '<html>502</html>', '\u0000'])('reads nothing from %j', (text) => {
    expect(loadOf(text)).toEqual(NOTHING);
  });
});
