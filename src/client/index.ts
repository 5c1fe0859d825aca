export type { ConnectionOptions } from './connection.ts';
export { FloeClient, type ResultsOptions } from './floe-client.ts';
export { type DeliveredResult, NodeApi } from './node-api.ts';
