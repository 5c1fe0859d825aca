export type { BlobStore } from './blobs/blob-store.ts';
export { DirectoryBlobStore } from './blobs/directory.ts';
export { type OpenStore, openStore, type StoreLocation } from './open.ts';
export type {
  BlobRef,
  CallbackRow,
  ConsumerRow,
  DeliveryRow,
  DurationRow,
  EndedCounts,
  EngineRow,
  EngineStateRow,
  NodeRow,
  ResultBlobs,
  ResultRow,
  ResultWithSummary,
  SessionPatch,
  SessionRow,
  TaskPatch,
  TaskRow,
  TrainerLoad,
} from './rows.ts';
export { SqliteStore } from './sqlite/store.ts';
export type { ClaimRequest, NewSessions, QueueOrder, Store, StoreTables } from './store.ts';
