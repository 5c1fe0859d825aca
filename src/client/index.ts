export type { ConnectionOptions } from './connection.ts';
export { FloeClient, type ResultsOptions } from './floe-client.ts';
export { type DeliveredResult, deliveryLength, NodeApi } from './node-api.ts';
