/** What other packages use of `@floe-rl/observe`. */
export { createGatewayMetrics, type GatewayMetrics, recordSession } from './gateway-metrics.ts';
export { createLogger, type Logger, silentLogger } from './log.ts';
export { ServerMetrics } from './server-metrics.ts';
export { tracingFromEnvironment } from './tracing.ts';
