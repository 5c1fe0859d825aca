/** The exports of `@floe-rl/observe` for other packages. */
export { createGatewayMetrics, type GatewayMetrics, recordSession } from './gateway-metrics.ts';
export { createLogger, type Logger, silentLogger } from './log.ts';
export { ServerMetrics } from './server-metrics.ts';
export { tracingFromEnvironment } from './tracing.ts';
