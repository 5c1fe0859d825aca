import { join } from 'node:path';
import type { Clock } from '../core/clock.ts';
import type { BlobStore } from './blobs/blob-store.ts';
import { DirectoryBlobStore } from './blobs/directory.ts';
import { SqliteStore } from './sqlite/store.ts';
import type { Store } from './store.ts';

export type StorePlace = {
  /** Holds what has no place of its own. */
  readonly dir: string;
  /** URL of a PostgreSQL database; null: an embedded one in `dir`. */
  readonly database: string | null;
  /** `s3://…` or a directory; null: below `dir`. */
  readonly blobs: string | null;
  readonly clock: Clock;
};

export type OpenStore = { readonly store: Store; readonly blobs: BlobStore };

/** Opens rows and blobs. Throws `setup_failed` for places that cannot be used, and `store_unavailable` for those that do not answer. */
export async function openStore(place: StorePlace): Promise<OpenStore> {
  const store = await openDatabase(place);
  try {
    return { store, blobs: await openBlobs(place) };
  } catch (thrown) {
    await store.close();
    throw thrown;
  }
}

// What is not used is not loaded: a client of PostgreSQL or S3 takes longer to load than the rest of the server.
async function openDatabase({ dir, database, clock }: StorePlace): Promise<Store> {
  if (database === null) return SqliteStore.open(join(dir, 'floe.db'));
  const { PostgresStore } = await import('./postgres/store.ts');
  return PostgresStore.open(database, { clock });
}

async function openBlobs({ dir, blobs, clock }: StorePlace): Promise<BlobStore> {
  if (blobs === null || !blobs.includes('://')) return DirectoryBlobStore.open(blobs ?? join(dir, 'blobs'), clock);
  const { S3BlobStore } = await import('./blobs/s3.ts');
  return S3BlobStore.open(blobs, clock);
}
