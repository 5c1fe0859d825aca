export type { BlobStore } from './blobs/blob-store.ts';
export { DirectoryBlobStore } from './blobs/directory.ts';
export { type OpenStore, openStore, type StoreLocation } from './open.ts';
export type {
  BlobRef,
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  EndedCounts,
  EngineStateRow,
  NodeRow,
  ResultBlobs,
  ResultWithSummary,
  SessionRow,
  TaskRow,
  TrainerLoad,
} from './rows.ts';
export { SqliteStore } from './sqlite/store.ts';
export type { ClaimRequest, NewSessions, Store, StoreTables } from './store.ts';
