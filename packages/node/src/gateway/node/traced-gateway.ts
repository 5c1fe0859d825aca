import { systemClock } from '@floe-rl/core';
import { type Logger, tracingFromEnvironment } from '@floe-rl/observe';
import type { GatewayConfig } from './config.ts';
import { type Gateway, type GatewayDeps, startGateway } from './gateway.ts';

/** Starts a gateway in this process as `startGateway` does. Its tracing spans go to the collector that environment variables name. */
export async function startTracedGateway(
  config: GatewayConfig,
  log: Logger,
  deps: Pick<GatewayDeps, 'worker'> = {},
): Promise<Gateway> {
  const { node_id } = config;
  const tracing = tracingFromEnvironment(process.env, 'floe-gateway', { node_id }, { clock: systemClock, log });
  const gateway = await startGateway(config, { ...deps, log, tracer: tracing.tracer });
  return {
    ...gateway,
    async close() {
      await gateway.close();
      await tracing.close();
    },
  };
}
