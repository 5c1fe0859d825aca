export type { ClientTlsFiles, ConnectionOptions } from './connection.ts';
export { type ChangeOptions, FloeClient, type PartOptions, type ResultsOptions } from './floe-client.ts';
