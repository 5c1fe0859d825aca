/** `floe/client`: what a trainer calls. Types of tasks and results are in `floe/schema`. */
export type { ClientTlsFiles, ConnectionOptions } from './connection.ts';
export { type ChangeOptions, FloeClient, type PartOptions, type ResultsOptions } from './floe-client.ts';
