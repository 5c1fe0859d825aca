export type { CallbackPost, CallbackTransport } from './callbacks/transport.ts';
export type { RolloutConfigInput } from './config.ts';
export type { RolloutDeps } from './control-plane.ts';
export { openApi } from './http/openapi.ts';
export { createRolloutServer, type RolloutServer } from './server.ts';
