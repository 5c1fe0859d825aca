import { cpus } from 'node:os';
import { FloeError } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import type { GatewayConfig } from '../node/config.ts';
import { workerDir } from '../recovery/worker-dirs.ts';

const MAX_PORT = 65_535;

/**
 * Returns the configuration of one worker: the node's configuration with the worker's share of every limit. The shares of all workers add up
 * to the limits of the node. Throws `bad_request` when a limit is too small to be divided.
 */
export function shareOf(config: GatewayConfig, index: number): GatewayConfig {
  const { processes: count } = config;
  const part = (total: number): number => partOf(total, index, count);
  /** Returns the share of a limit that must be at least 1 for every worker. */
  const whole = (name: string, total: number): number => {
    if (total >= count) return part(total);
    const message = `processes: ${count} processes need ${name} of at least ${count}, which is ${total}; raise it, or use fewer processes`;
    throw new FloeError('bad_request', message, { field: 'processes', limit: name, value: total });
  };
  const { pools, prepared, prewarmed, background_stops, reused_runtimes, plugins, proxy } = config;
  const port = proxy.port === 0 ? 0 : proxy.port + index;
  if (port > MAX_PORT) {
    const message = `proxy.port: process ${index} would have port ${port}; choose a lower port, the processes have consecutive ones`;
    throw new FloeError('bad_request', message, { field: 'proxy.port' });
  }
  const kept = <T extends { readonly max_count: number; readonly max_mb: number }>(limits: T): T => ({
    ...limits,
    max_count: part(limits.max_count),
    max_mb: part(limits.max_mb),
  });
  return {
    ...config,
    processes: 1,
    state_dir: workerDir(config.state_dir, index),
    pools: {
      init: whole('pools.init (--init)', pools.init),
      ready: part(pools.ready),
      run: whole('pools.run (--run)', pools.run),
      postrun: whole('pools.postrun (--postrun)', pools.postrun),
    },
    start_limits: Object.fromEntries(
      Object.entries(config.start_limits).map(([backend, limit]) => [
        backend,
        whole(`start_limits.${backend} (--start-limit)`, limit),
      ]),
    ),
    start_rates: Object.fromEntries(Object.entries(config.start_rates).map(([name, rate]) => [name, rate / count])),
    prepared: kept(prepared),
    background_stops: kept(background_stops),
    reused_runtimes: kept(reused_runtimes),
    prewarmed: { ...prewarmed, count: part(prewarmed.count), max_mb: part(prewarmed.max_mb) },
    undelivered_mb: config.undelivered_mb / count,
    plugins: { ...plugins, processes: Math.max(1, part(plugins.processes ?? cpus().length - 1)) },
    engines: config.engines.map((spec) => engineShareOf(spec, index, count)),
    proxy: { ...proxy, port },
  };
}

/** Returns an engine's specification with a worker's share of its limits, which is at least 1 call, request or token. */
export function engineShareOf(spec: EngineSpec, index: number, count: number): EngineSpec {
  const part = (limit: number | null): number | null =>
    limit === null ? null : Math.max(1, partOf(limit, index, count));
  const { limits, adaptive_concurrency: adaptive } = spec;
  return {
    ...spec,
    max_concurrency: part(spec.max_concurrency),
    adaptive_concurrency: adaptive === null ? null : { min: part(adaptive.min) ?? 1, max: part(adaptive.max) ?? 1 },
    limits:
      limits === null
        ? null
        : {
            requests_per_minute: part(limits.requests_per_minute),
            tokens_per_minute: part(limits.tokens_per_minute),
          },
  };
}

/** Returns one of `count` parts of an integer. The parts differ by at most 1 and add up to `total`. */
function partOf(total: number, index: number, count: number): number {
  return Math.floor(total / count) + (index < total % count ? 1 : 0);
}
