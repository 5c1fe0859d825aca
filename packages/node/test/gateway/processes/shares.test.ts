import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type GatewayConfig, type GatewayConfigInput, gatewayConfigSchema } from '../../../src/gateway/node/config.ts';
import { engineShareOf, shareOf } from '../../../src/gateway/processes/shares.ts';

function configOf(fields: Partial<GatewayConfigInput>): GatewayConfig {
  const required = { node_id: 'n', server_url: 'http://127.0.0.1:1', state_dir: '/state', harness_dir: '/harnesses' };
  return gatewayConfigSchema.parse({ ...required, ...fields });
}

/** Returns the limits that are divided among the processes of a node. */
function limitsOf({ pools, prepared, prewarmed, background_stops, reused_runtimes, start_limits }: GatewayConfig) {
  return [
    ...Object.values(pools),
    ...[prepared, background_stops, reused_runtimes].flatMap(({ max_count, max_mb }) => [max_count, max_mb]),
    ...[prewarmed.count, prewarmed.max_mb],
    start_limits.docker ?? 0,
  ];
}

describe('shareOf', () => {
  it('divides every limit of a node so that the parts add up to it and differ by at most 1', () => {
    const size = fc.integer({ min: 8, max: 10_000 });
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 8 }), size, size, size, size, (processes, init, ready, run, postrun) => {
        const config = configOf({
          processes,
          pools: { init, ready, run, postrun },
          prepared: { max_count: init, max_mb: run },
          prewarmed: { count: ready, max_mb: postrun },
          start_limits: { docker: init },
        });
        const shares = Array.from({ length: processes }, (_, index) => limitsOf(shareOf(config, index)));
        for (const [at, total] of limitsOf(config).entries()) {
          const parts = shares.map((share) => share[at] ?? 0);
          expect(parts.reduce((sum, part) => sum + part, 0)).toBe(total);
          expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1);
        }
      }),
    );
  });

  it('gives each process a state directory and a port of its own, and the memory of the whole node', () => {
    const config = configOf({ processes: 3, proxy: { host: '0.0.0.0', port: 9000 }, memory_mb: 64_000 });
    const shares = [0, 1, 2].map((index) => shareOf(config, index));
    expect(shares.map(({ state_dir }) => state_dir)).toEqual(['/state/p0', '/state/p1', '/state/p2']);
    expect(shares.map(({ proxy }) => proxy.port)).toEqual([9000, 9001, 9002]);
    expect(shares.map(({ memory_mb }) => memory_mb)).toEqual([64_000, 64_000, 64_000]);
    expect(shareOf(configOf({ processes: 2 }), 1).proxy.port).toBe(0);
  });

  it('divides start rates, also into fractions', () => {
    const config = configOf({ processes: 4, start_rates: { docker: 2, local: 8 } });
    expect(shareOf(config, 3).start_rates).toEqual({ docker: 0.5, local: 2 });
  });

  it.each([
    [
      { processes: 8, pools: { init: 8, run: 7, postrun: 8 } },
      /8 processes need pools.run \(--run\) of at least 8, which is 7/,
    ],
    [{ processes: 5, pools: { init: 4, run: 8, postrun: 8 } }, /pools.init/],
    [{ processes: 5, pools: { init: 8, run: 8, postrun: 4 } }, /pools.postrun/],
    [{ processes: 2, start_limits: { docker: 1 } }, /start_limits.docker/],
    [{ processes: 2, proxy: { host: '0.0.0.0', port: 65_535 } }, /process 1 would have port 65536/],
  ])('refuses limits that cannot be divided: %j', (fields, message) => {
    const config = configOf(fields);
    const shares = (): unknown[] => Array.from({ length: config.processes }, (_, index) => shareOf(config, index));
    expect(shares).toThrow(expect.objectContaining({ code: 'bad_request', message: expect.stringMatching(message) }));
  });
});

describe('engineShareOf', () => {
  const spec = configOf({
    engines: [
      {
        base_url: 'http://127.0.0.1:1',
        max_concurrency: 3,
        limits: { requests_per_minute: 1, tokens_per_minute: 101 },
      },
    ],
  }).engines[0];

  it('divides the limits of an engine, of which each process has at least 1', () => {
    if (spec === undefined) throw new Error('no engine');
    expect([0, 1].map((index) => engineShareOf(spec, index, 2))).toMatchObject([
      { max_concurrency: 2, limits: { requests_per_minute: 1, tokens_per_minute: 51 } },
      { max_concurrency: 1, limits: { requests_per_minute: 1, tokens_per_minute: 50 } },
    ]);
  });

  it('leaves an engine without limits as it is', () => {
    if (spec === undefined) throw new Error('no engine');
    const free = { ...spec, max_concurrency: null, limits: null };
    expect(engineShareOf(free, 1, 4)).toEqual(free);
  });
});
