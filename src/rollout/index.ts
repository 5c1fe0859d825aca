export type { CallbackPost, CallbackTransport } from './callback-transport.ts';
export { type RolloutConfig, type RolloutConfigInput, rolloutConfigSchema } from './config.ts';
export type { RolloutLog } from './context.ts';
export type { RolloutDeps } from './control-plane.ts';
export type { MetricsRegistry } from './http/service-handlers.ts';
export { openApi } from './openapi.ts';
export { createRolloutServer, type RolloutServer } from './server.ts';
