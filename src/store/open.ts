import { join } from 'node:path';
import type { Clock } from '../core/clock.ts';
import type { BlobStore } from './blobs/blob-store.ts';
import { DirectoryBlobStore } from './blobs/directory.ts';
import { SqliteStore } from './sqlite/store.ts';
import type { Store } from './store.ts';

/** Where a server keeps its data. */
export type StoreLocation = {
  /** The data directory, for rows and blobs without a separate location. */
  readonly dir: string;
  /** URL of a PostgreSQL database; `null` for the embedded database in `dir`. */
  readonly database: string | null;
  /** `s3://…` or a directory; `null` for a directory in `dir`. */
  readonly blobs: string | null;
  readonly clock: Clock;
};

export type OpenStore = { readonly store: Store; readonly blobs: BlobStore };

/** Opens database and blobs. Throws `setup_failed` for a location that cannot be used, and `store_unavailable` for one that does not respond. */
export async function openStore(place: StoreLocation): Promise<OpenStore> {
  const store = await openDatabase(place);
  try {
    return { store, blobs: await openBlobs(place) };
  } catch (thrown) {
    await store.close();
    throw thrown;
  }
}

// The clients of PostgreSQL and S3 are imported only when they are used, because loading them takes longer than the rest of the server.
async function openDatabase({ dir, database, clock }: StoreLocation): Promise<Store> {
  if (database === null) return SqliteStore.open(join(dir, 'floe.db'));
  const { PostgresStore } = await import('./postgres/store.ts');
  return PostgresStore.open(database, { clock });
}

async function openBlobs({ dir, blobs, clock }: StoreLocation): Promise<BlobStore> {
  if (blobs === null || !blobs.includes('://')) return DirectoryBlobStore.open(blobs ?? join(dir, 'blobs'), clock);
  const { S3BlobStore } = await import('./blobs/s3.ts');
  return S3BlobStore.open(blobs, clock);
}
