/** `floe/client`: the API with which a trainer calls floe. The types of tasks and results are in `floe/schema`. */
export type { ClientTlsFiles, ConnectionOptions } from './connection.ts';
export { type ChangeOptions, FloeClient, type PartOptions, type ResultsOptions } from './floe-client.ts';
