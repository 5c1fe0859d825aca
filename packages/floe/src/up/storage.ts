import type { StoreLocation } from '@floe-rl/server';

/** The locations of a server's database and blobs. A location is `null` when the data is in the server's own directory. */
export type Storage = Pick<StoreLocation, 'database' | 'blobs'>;

export const EMBEDDED_STORAGE: Storage = { database: null, blobs: null };
