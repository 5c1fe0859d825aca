import { join } from 'node:path';
import { type Clock, ensureWritableDir } from '@floe-rl/core';
import type { BlobStore } from './blobs/blob-store.ts';
import { DirectoryBlobStore } from './blobs/directory.ts';
import { SqliteStore } from './sqlite/store.ts';
import type { Store } from './store.ts';

/** The locations of a server's data: its database and its blobs. */
export type StoreLocation = {
  /** The server's data directory. It contains the database or the blobs when no other location is given for them. */
  readonly dir: string;
  /** URL of a PostgreSQL database; `null` for an SQLite database in `dir`. */
  readonly database: string | null;
  /** Location of the blobs: a URL `s3://…` or a directory; `null` for a directory in `dir`. */
  readonly blobs: string | null;
  readonly clock: Clock;
  /** Called with notices for the operator, such as that other users could read the database. */
  readonly notify?: (notice: string) => void;
};

export type OpenStore = { readonly store: Store; readonly blobs: BlobStore };

/**
 * Opens the database and the blob store. Throws `setup_failed` for a location that cannot be used, and `store_unavailable` for a location
 * that does not respond.
 */
export async function openStore(place: StoreLocation): Promise<OpenStore> {
  const store = await openDatabase(place);
  try {
    return { store, blobs: await openBlobs(place) };
  } catch (thrown) {
    await store.close();
    throw thrown;
  }
}

// The PostgreSQL and S3 modules are imported only when they are used, because loading them takes longer than the rest of the server's
// start.
async function openDatabase({ dir, database, clock, notify }: StoreLocation): Promise<Store> {
  if (database === null) return SqliteStore.open(join(dir, 'floe.db'), notify);
  const { PostgresStore } = await import('./postgres/store.ts');
  return PostgresStore.open(database, { clock });
}

async function openBlobs({ dir, blobs, clock }: StoreLocation): Promise<BlobStore> {
  if (blobs === null || !blobs.includes('://')) {
    const blobDir = blobs ?? join(dir, 'blobs');
    ensureWritableDir(blobDir, 'choose another directory for blobs with --blobs');
    return DirectoryBlobStore.open(blobDir, clock);
  }
  const { S3BlobStore } = await import('./blobs/s3.ts');
  return S3BlobStore.open(blobs, clock);
}
