export type { CallbackPost, CallbackTransport } from './callbacks/transport.ts';
export { type RolloutConfig, type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
export type { RolloutLog } from './context.ts';
export type { RolloutDeps } from './control-plane.ts';
export { openApi } from './http/openapi.ts';
export type { MetricsRegistry } from './http/service-handlers.ts';
export { createRolloutServer, type RolloutServer } from './server.ts';
