export type { ClientTlsFiles } from './client-tls.ts';
export type { ConnectionOptions } from './connection.ts';
export { FloeClient, type ResultsOptions } from './floe-client.ts';
export {
  type DeliveredResult,
  deliveryLength,
  NodeApi,
  type NodeApiOptions,
  type OwnRegistration,
} from './node-api.ts';
